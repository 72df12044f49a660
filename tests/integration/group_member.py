"""A member process of the group tests: trains in one generation after another, as its standard input says.

A line in: {"prefix", "rank", "size", "until", "hold"}: join that generation and train up to step `until`; with `hold`,
hand out the gradients of step `hold` and then stay silent. Lines out: {"event": ...}.
"""

import hashlib
import json
import sys
import time

import torch
from exchange_members import Member, plan_of, small_net

from ringleader.comm.buckets import Buckets
from ringleader.comm.transports import Transport
from ringleader.comm.transports.meeting import Call, meet
from ringleader.errors import ExchangeBroken
from ringleader.sync import open_exchange

SHARDS = 4


def say(event: str, **values: object) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def join(port: int, kind: str, order: dict) -> Transport | None:
    if order["size"] == 1:
        return None
    call = Call("127.0.0.1", port, order["prefix"], order["rank"], order["size"], 30.0, kinds=(kind,))
    return meet(call)


def main(port: int, kind: str) -> None:
    torch.set_num_threads(1)
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    shared = kind == "shared"
    buckets = Buckets(list(net.parameters()), capacity_bytes=1 << 10, alone_bytes=1 << 12, shared=shared)
    committed = 0
    for line in sys.stdin:
        order = json.loads(line)
        since = time.monotonic()
        transport = join(port, kind, order)
        plan = plan_of(order["size"], SHARDS)
        exchange = open_exchange(
            architecture="ring",
            algorithm="direct",
            same_bits=True,
            plan=plan,
            rank=order["rank"],
            transport=transport,
            parameters=list(net.parameters()),
            word_length=order["size"],
            buckets=buckets,
        )
        say("formed", seconds=time.monotonic() - since, reused=exchange.buckets is buckets)
        buckets = exchange.buckets
        member = Member(plan, order["rank"], exchange, net, optimizer)
        try:
            while committed < order["until"]:
                member.gradient(committed, frozenset(range(SHARDS)))
                if committed == order.get("hold"):
                    say("holding")
                    sys.stdin.readline()
                say("waiting", step=committed)
                exchange.finish(torch.zeros(order["size"]))
                optimizer.step()
                committed += 1
        except ExchangeBroken as error:
            say("broken", step=committed, at=time.time(), why=str(error), lost=error.rank)
        exchange.close()
        flat = torch.cat([p.detach().view(-1) for p in net.parameters()])
        say("done", step=committed, weights=hashlib.sha256(flat.numpy().tobytes()).hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
