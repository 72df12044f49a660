"""One member on its host: a few steps in every synchronous architecture by turns, between two looks at the links.

Its last line is {architecture: [weights' digest, seconds of each counted step]}.
"""

import argparse
import hashlib
import json
import time
from datetime import timedelta

import torch
from exchange_members import Member, momentum, plan_of, synchronous
from rooms import SECRET
from torch import Tensor, nn
from torch.distributed import TCPStore

from ringleader.bench.processes.children import die_with_parent
from ringleader.comm.transports.meeting import MeetingCall, StoreClients, library, meet
from ringleader.exchange import open_exchange

DEADLINE_S = 60.0
SHARDS, STEPS, FIRST, WIDTH = 4, 3, 2, 512


class Deep(Member):
    """Trains a net of some megabytes on four rows a shard."""

    def gradient(self, step: int, present: frozenset[int]) -> None:
        self.exchange.begin_step(present)
        for shard in self.plan.shards_of(self.rank):
            self.exchange.begin_slice(shard)
            x, y = rows(step, shard, self.net[0].in_features)
            ((self.net(x) - y) ** 2).mean().backward()
            self.exchange.end_slice()


def rows(step: int, shard: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + shard)
    return torch.randn(4, width, generator=generator), torch.randn(4, width, generator=generator)


def deep(layers: int, width: int) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    host, _, port = asked.store.rpartition(":")
    store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=DEADLINE_S))
    told: dict[str, list[object]] = {}
    for name, sync in synchronous().items():
        servers = asked.servers if sync.server_count else 0
        if sync.round_steps == 1 and asked.rank < asked.workers + servers:
            told[name] = trained(store, name, servers, asked)
    print(json.dumps(told), flush=True)


def trained(store: TCPStore, name: str, servers: int, asked: argparse.Namespace) -> list[object]:
    plan = plan_of(asked.workers, SHARDS, servers)
    net = deep(asked.layers, asked.width)
    host, _, port = asked.store.rpartition(":")
    call = MeetingCall(
        host, int(port), name, asked.rank, len(plan.members), DEADLINE_S, SECRET, host=asked.address
    )
    exchange = open_exchange(
        architecture=name,
        algorithm="auto",
        same_bits=True,
        plan=plan,
        rank=asked.rank,
        transport=meet(call, clients=StoreClients(library)),
        parameters=list(net.parameters()),
        word_length=0,
        buckets=None,
    )
    exchange.go_by(exchange.measure())
    member = Deep(plan, asked.rank, exchange, net, momentum(net.parameters()))
    member.train(FIRST)
    mark(store, f"{name}/begin/{asked.rank}", f"{name}/begin/go")
    took = []
    for _ in range(STEPS):
        since = time.perf_counter()
        weights = member.train(1)
        took.append(time.perf_counter() - since)
    mark(store, f"{name}/end/{asked.rank}", f"{name}/end/go")
    exchange.close()
    content = b"".join(weights[key].numpy().tobytes() for key in sorted(weights))
    return [hashlib.sha256(content).hexdigest(), took]


def mark(store: TCPStore, said: str, awaited: str) -> None:
    store.set(said, "1")
    store.wait([awaited])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("store", "address"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rank", "workers", "servers", "layers", "width"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    die_with_parent()
    main()
