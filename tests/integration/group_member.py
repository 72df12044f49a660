"""A member process of the group tests: trains in one generation after another, as it is told through a pipe.

Told {"prefix", "rank", "size", "until", "hold"}: join that generation and train up to step `until`; with `hold`, hand
out the gradients of step `hold` and then stay silent. Says {"event": ...}.
"""

import hashlib
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from exchange_members import Member, plan_of, small_net
from rooms import SECRET

from ringleader.comm.buckets import Buckets
from ringleader.comm.transports import Transport
from ringleader.comm.transports.meeting import MeetingCall, meet
from ringleader.errors import ExchangeBroken
from ringleader.exchange import open_exchange

SHARDS = 4


def join(port: int, kind: str, order: dict[str, Any]) -> Transport | None:
    if order["size"] == 1:
        return None
    call = MeetingCall(
        "127.0.0.1", port, order["prefix"], order["rank"], order["size"], 30.0, SECRET, kinds=(kind,)
    )
    return meet(call)


def member(port: int, kind: str, pipe: Connection) -> None:
    """The process; ends with the other end of the pipe."""
    torch.set_num_threads(1)

    def say(event: str, **values: object) -> None:
        pipe.send({"event": event, **values})

    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    shared = kind == "shared"
    buckets = Buckets(list(net.parameters()), capacity_bytes=1 << 10, alone_bytes=1 << 12, shared=shared)
    committed = 0
    while True:
        order: dict[str, Any] = pipe.recv()
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
        trainer = Member(plan, order["rank"], exchange, net, optimizer)
        try:
            while committed < order["until"]:
                trainer.gradient(committed, frozenset(range(SHARDS)))
                if committed == order.get("hold"):
                    say("holding")
                    pipe.recv()
                say("waiting", step=committed)
                exchange.finish(torch.zeros(order["size"]))
                optimizer.step()
                committed += 1
        except ExchangeBroken as error:
            say("broken", step=committed, at=time.time(), why=str(error), lost=error.rank)
        exchange.close()
        flat = torch.cat([p.detach().view(-1) for p in net.parameters()])
        say("done", step=committed, weights=hashlib.sha256(flat.numpy().tobytes()).hexdigest())
