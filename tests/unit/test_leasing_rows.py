"""Sparse embeddings where workers lease items: touched rows travel, each once, and the bits are the dense ones."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from leasing import (
    ASYNC,
    BACKUP,
    BATCH,
    DATA,
    LR,
    ROWS,
    SHARDS,
    SSP,
    STRICT,
    Nets,
    Numbers,
    check,
    job,
    name_of,
)
from threaded_cast import Shot, ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.exchange.sparse_messages import message_bytes
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.modes.async_server.messages import ANSWER, ASK, PUSH, RECEIPT

MODES = [ASYNC, ASYNC | {"servers": 2}, SSP, SSP | {"servers": 2}, STRICT | {"servers": 3}, BACKUP]
WIDTH = 4


class Column(nn.Embedding):
    """A table whose rows are their number's count, seen as a vector."""

    def __init__(self) -> None:
        super().__init__(ROWS, 1, sparse=True, _weight=torch.zeros(ROWS, 1))


class Tabled(nn.Module):
    """As `Counts`, but the gradients are rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(Column() for _ in range(3))

    @property
    def vectors(self) -> list[Tensor]:
        return [table.weight[:, 0] for table in self.tables]  # type: ignore[index]

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([table(rows)[:, 0] for table in self.tables]).sum(dim=0)


class TabledNets(Nets):
    def make(self) -> nn.Module:
        return Tabled()


@pytest.mark.parametrize("mode", MODES, ids=name_of)
@pytest.mark.parametrize("seed", range(2))
def test_every_row_is_applied_once_on_every_server_whoever_is_killed(
    mode: Any, seed: int, tmp_path: Path
) -> None:
    """Seed 0 kills nobody."""
    chance, servers = random.Random(seed), mode.get("servers", 1)
    tag, sends = chance.choice(((PUSH, True), (RECEIPT, False), (ASK, True), (ANSWER, False)))
    shot = Shot(f"w{servers}", chance.randrange(servers), tag, chance.randrange(12), sends)
    print(f"seed {seed}: {shot}")
    nets = TabledNets()
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path, shots=(shot,) if seed else ()).play()
    check(play, nets, mode)


def test_a_joiner_takes_over_the_rows_of_a_loop_that_it_missed(tmp_path: Path) -> None:
    nets = TabledNets()
    faults = FaultPlan().resize(at_step=1, workers_min=4, workers_max=4)
    faults = faults.hold("s0", at_step=2, phase="committed", for_generation=2)
    spec = job(SSP | {"servers": 2}, workers={"min": 1, "max": 1})
    play = ThreadedCast(spec, nets, cues=faults, artifacts=tmp_path).play()
    check(play, nets, SSP)
    assert play.worlds == [1, 4]


class Ratings(nn.Module):
    """A table and a small net on top; rows come several times in a slice."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.users = nn.Embedding(40, WIDTH, sparse=sparse)
        self.items = nn.EmbeddingBag(90, WIDTH, mode="sum", sparse=sparse)
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = (x.abs() * 20).long()
        out: Tensor = self.out(self.users(places[:, 0] % 40) + self.items(places[:, 1:] % 90))
        return out


NETS = {sparse: Ratings(sparse=sparse) for sparse in (True, False)}


def rate(
    session: Session, *, sparse: bool = True, adam: bool = False, clip_norm: float | None = None
) -> None:
    net = session.model(copy.deepcopy(NETS[sparse]))
    tables = [net.users.weight, net.items.weight]
    make: Any = torch.optim.SparseAdam if adam else torch.optim.SGD
    session.optimizer(make(tables, lr=0.05), clip_norm=clip_norm)
    session.optimizer(torch.optim.SGD(net.out.parameters(), lr=0.05, momentum=0.9))
    for _ in range(2):
        for x, y in session.batches(DATA):
            session.step(F.cross_entropy(net(x), y), weight=float(y.sum() + 1))


@pytest.mark.parametrize(("servers", "clip_norm"), [(1, None), (1, 0.05), (2, None)])
@pytest.mark.parametrize("adam", [False, True])
def test_without_staleness_rows_have_the_bits_of_synchronous_servers(
    adam, servers, clip_norm, tmp_path
) -> None:
    """A worker is killed in its fifth push."""

    def train(session: Session) -> None:
        rate(session, adam=adam, clip_norm=clip_norm)

    alone, _ = run_local(job({}), train, tmp_path / "alone")
    shot = Shot(f"w{servers}", 0, PUSH, 9)
    play = ThreadedCast(
        job(STRICT | {"servers": servers}), train, artifacts=tmp_path / "cast", shots=(shot,)
    ).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest


def test_without_staleness_plain_descent_has_the_bits_of_dense_gradients(tmp_path: Path) -> None:
    plays = [
        ThreadedCast(
            job(STRICT), lambda session, s=sparse: rate(session, sparse=s), artifacts=tmp_path
        ).play()
        for sparse in (True, False)
    ]
    assert [play.outcome for play in plays] == ["succeeded"] * 2, plays[0].message
    assert plays[0].digest == plays[1].digest


@pytest.mark.parametrize("mode", [ASYNC, SSP], ids=name_of)
def test_alone_rows_have_the_bits_of_dense_gradients(mode: Any, tmp_path: Path) -> None:
    ends = [
        run_local(job(mode), lambda session, s=s: rate(session, sparse=s), tmp_path)[0] for s in (True, False)
    ]
    assert ends[0].digest == ends[1].digest


@pytest.mark.parametrize("servers", [1, 2])
def test_an_asynchronous_item_is_clipped_by_its_whole_norm_rows_too(servers: int, tmp_path: Path) -> None:
    """One worker, so that one server's order is two servers' order."""
    digests = []
    for clip_norm in (0.05, None):

        def train(session: Session, bound: float | None = clip_norm) -> None:
            rate(session, clip_norm=bound)

        spec = job(ASYNC | {"servers": servers}, workers={"min": 1, "max": 1})
        play = ThreadedCast(spec, train, artifacts=tmp_path).play()
        assert play.outcome == "succeeded", (play.reason, play.message)
        digests.append(play.digest)
    assert digests[0] != digests[1]


def test_bytes_are_those_of_the_touched_rows(tmp_path: Path) -> None:
    """One worker and nothing stale: each step's pushes, and one pull of what the step before changed."""

    def train(session: Session) -> None:
        net = session.model(Column())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            session.step(net(rows).mean())

    spec = job(STRICT, workers={"min": 1, "max": 1})
    play = ThreadedCast(spec, train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)

    def nbytes(rows: int) -> int:
        return message_bytes([rows], [torch.empty(ROWS, 1)])

    whole = SHARDS * nbytes(BATCH // SHARDS) + nbytes(BATCH)
    short = 2 * nbytes(1) + nbytes(BATCH)
    first = SHARDS * nbytes(BATCH // SHARDS) + nbytes(0)
    assert [values["comm_bytes"] for _, values in play.values] == [first, *[whole] * 3, short]


def test_an_optimizer_that_changes_other_rows_is_refused_by_name(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(Column())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9))
        for rows in session.batches(Numbers()):
            session.step(net(rows).mean())

    play = ThreadedCast(job(ASYNC), train, artifacts=tmp_path).play()
    assert play.outcome == "failed"
    assert "weight" in play.message
    assert "SGD" in play.message
