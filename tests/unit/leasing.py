"""What the tests of leased items share: rows that are counted in the weights, and a net that learns."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from play import Play
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from ringleader.spec import JobSpec
from ringleader.train import Session

torch.set_num_threads(1)
SHARDS, BATCH, ROWS, EPOCHS, LR = 4, 16, 66, 2, 0.5
STEPS_AN_EPOCH = 5
"""The last batch has two rows, in shards 1 and 3."""
STEPS = EPOCHS * STEPS_AN_EPOCH
ITEMS = (STEPS_AN_EPOCH - 1) * SHARDS + 2

ASYNC = {"consistency": "async"}
SSP = {"consistency": "ssp", "staleness": 2}
STRICT = {"consistency": "ssp"}
BACKUP = {"backup_workers": 1}
MODES = [ASYNC, ASYNC | {"servers": 2}, SSP, SSP | {"servers": 2}, STRICT | {"servers": 3}, BACKUP]


def name_of(mode: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in mode.items())


def job(mode: dict[str, Any], **changes: Any) -> JobSpec:
    sync = {"intra_node": "parameter_server", "inter_node": "parameter_server", **mode}
    base: dict[str, Any] = {
        "name": "leases",
        "entrypoint": "leases:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
        "sync": sync,
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


class Numbers(Dataset[Tensor]):
    """Rows that are their own numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Tensor:
        return torch.tensor(row)


class Counts(nn.Module):
    """The gradient of a row's mean is one at the row: weights tell how often each row was applied. One vector for
    each server."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.ParameterList(nn.Parameter(torch.zeros(ROWS)) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([vector[rows] for vector in self.vectors]).sum(dim=0)


def count(session: Session, net: nn.Module, before: Callable[[], None] = lambda: None) -> None:
    session.model(net)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
    for _ in range(EPOCHS):
        for rows in session.batches(Numbers(), shuffle=False):
            before()
            session.step(net(rows).mean(), first=rows.float().mean())


class Nets:
    """A training function, and the net of each member that ran it.

    Args:
        after: of this worker nobody computes anything, until it is dead.
    """

    def __init__(self, after: str = "") -> None:
        self.made: dict[str, nn.Module] = {}
        self.dead = threading.Event()
        self._after = after

    def __call__(self, session: Session) -> None:
        me = threading.current_thread().name
        net = self.made[me] = self.make()
        count(session, net, self._wait if self._after not in ("", me) else lambda: None)

    def make(self) -> nn.Module:
        return Counts()

    def _wait(self) -> None:
        assert self.dead.wait(30), f"nobody killed {self._after}"


class Leaving(Nets):
    """Leaves its first loop once it has drawn a row from `row` on; the second one takes all rows.

    Args:
        way: by a "break", or by a "stop" of the session.
    """

    def __init__(self, way: str, row: int) -> None:
        super().__init__()
        self._way = way
        self._row = row

    def __call__(self, session: Session) -> None:
        net = self.made[threading.current_thread().name] = session.model(self.make())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if int(rows.max()) >= self._row:
                if self._way == "break":
                    break
                session.stop()
            session.step(net(rows).mean())
        for rows in session.batches(Numbers(), shuffle=False):
            session.step(net(rows).mean())


def expected(play: Play, mode: dict[str, Any]) -> Tensor:
    """(ROWS,) what every vector must be, by the ledger."""
    weights = torch.zeros(ROWS, dtype=torch.float64)
    for _, _, rows in play.rows:
        for row in rows:
            own = BATCH if row < ROWS - ROWS % BATCH else ROWS % BATCH
            weights[row] -= LR / (own if mode.get("consistency") == "async" else len(rows))
    return weights


def check(play: Play, nets: Nets, mode: dict[str, Any]) -> None:
    """What holds whatever happened."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    rows = [row for _, _, row in play.settled_rows()]
    assert sorted(rows) == sorted(list(range(ROWS)) * EPOCHS)
    assert {f.samples for f in play.finished.values()} == {EPOCHS * ROWS}
    (staleness,) = {tuple(f.staleness) for f in play.finished.values()}
    assert sum(staleness) == EPOCHS * ITEMS
    weights = expected(play, mode)
    exact = "backup_workers" not in mode  # its sums of 13 rows are divided by 13: no power of two
    for name in play.finished:
        for vector in nets.made[name].vectors:  # type: ignore[union-attr]
            same = torch.equal(vector.detach().double(), weights)
            assert same if exact else torch.allclose(vector.detach().double(), weights, atol=1e-6)


class Drawn(nn.Module):
    """Without dropout: members are threads that share the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.register_parameter("unused", nn.Parameter(torch.ones(3)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def drawn_rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(72, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


DATA = drawn_rows()
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
NET = Drawn()
"""Copied by every member: the generator that draws weights is shared by all threads."""


def learn(session: Session, kind: str = "momentum", clip_norm: float | None = None) -> None:
    """BatchNorm, a schedule, weights, a parameter that nothing reaches, evaluations, a short last batch."""
    net = session.model(copy.deepcopy(NET))
    optimizer = session.optimizer(OPTIMIZERS[kind](net.parameters()), clip_norm=clip_norm)
    session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7))

    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    for _ in range(3):
        for x, y in session.batches(DATA):
            session.step(F.cross_entropy(net(x), y), weight=float(y.sum() + 1), mean_x=x.mean())
        session.evaluate(DATA, score)


class Tally(Counts):
    """Buffers that count what the forwards saw: rows, and turns; and a truth value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(ROWS, dtype=torch.float64))
        self.register_buffer("turns", torch.tensor(0))
        self.register_buffer("late", torch.tensor(False))

    def forward(self, rows: Tensor) -> Tensor:
        self.seen[rows] += 1
        self.turns += 1
        self.late.fill_(bool(rows.max() >= BATCH))
        return super().forward(rows)
