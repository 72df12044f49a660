"""Two hosts behind shaped links: what weights that travel as tokens bring across, by the kernel's own counters."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import pytest
import torch
from forks import processes
from torch import Tensor, nn
from torch.utils.data import Dataset

from ringleader.bench.exchange import laboratory
from ringleader.bench.exchange.nodes import WORKERS, link_bytes, two_nodes
from ringleader.bench.processes.members import train
from ringleader.bench.training.course import Crossed
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.sync_keys import Architecture
from ringleader.train import Session

ROWS, WIDTH = 64, 1 << 17
NBYTES = ROWS * WIDTH * 4
HEADERS = 1.06
"""Ethernet, IP and TCP headers, acknowledgements, and tokens that bring nothing, under 1 MB/s: 6 % of 34 MB."""
CROSSED = {
    "token_ring": 2.0,
    "token_ring/ring": 2.0,
    "token_ring/parameter_server": 2.0,
    "parameter_server/token_ring": 1.5 + 0.5,
}
"""How often the weights cross the link, both ways, until everybody has one move of the last worker: over both borders
between the nodes once; pushed, up to the server that is not at home, down where it is not, and at the loop's end what
the server that is not beside the first worker has not from its own spans."""

pytestmark = [
    pytest.mark.skipif(bool(laboratory.missing()), reason=f"no network laboratory: {laboratory.missing()}"),
    pytest.mark.timeout(400),
]


def asked() -> dict[str, JobSpec]:
    """Every way in which weights travel as tokens that the job file admits; two workers and a server on each host."""
    found: dict[str, JobSpec] = {}
    for inter, intra in product(get_args(Architecture), repeat=2):
        servers = {"servers": 2} if "parameter_server" in (inter, intra) else {}
        words: dict[str, Any] = {
            "name": "crossing",
            "entrypoint": "crossing:train",
            "workers": {"min": WORKERS, "max": WORKERS},
            "sync": {"inter_node": inter, "intra_node": intra, **servers},
        }
        with suppress(SpecInvalid):
            spec = JobSpec.parse(words)
            if spec.sync.circulates:
                found[spec.sync.architecture] = spec
    return found


class One(Dataset[Tensor]):
    """One row: the last shard's, and so the last worker's."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int) -> Tensor:
        return torch.tensor(row)


@dataclass(slots=True)
class OneMove:
    """A training function: one worker computes one item, and all get what it moved.

    Attributes:
        crossed: bytes that have crossed this node's link so far.
        crossed_bytes: over this node's link in the loop.
    """

    crossed: Crossed
    crossed_bytes: int = 0

    def __call__(self, session: Session) -> None:
        net = nn.Embedding(ROWS, WIDTH)
        nn.init.zeros_(net.weight)
        session.model(net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=1.0))

        def moved(rows: Tensor) -> dict[str, Tensor]:
            return {"moved": net(rows).sum(dim=1).detach()}

        session.evaluate(One(), moved)  # by then all have met
        since = self.crossed()
        for rows in session.batches(One()):
            session.step(net(rows).sum())
        session.evaluate(One(), moved)
        self.crossed_bytes = self.crossed() - since


def test_tokens_bring_the_weights_across_as_often_as_the_formula_says() -> None:
    """The workers inside a node are in no formula: what they pass to each other crosses no link."""
    specs = asked()
    assert set(specs) == set(CROSSED)
    processes()  # before the first members, who come from that server
    with two_nodes() as nodes:
        assert not nodes.unlinked
        for name, spec in specs.items():
            ended = train(nodes, name.replace("/", "-"), spec, OneMove(link_bytes), deadline_s=60)
            assert {worker.finished.scores["moved"] for worker in ended} == {-float(WIDTH)}, name
            crossed = ended[0].function.crossed_bytes / NBYTES
            assert CROSSED[name] <= crossed <= CROSSED[name] * HEADERS, (name, crossed)
