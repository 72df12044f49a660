"""The token ring in one process: plain training, steps and rows counted, loops that end early."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ringleader
from ringleader.comm.timeline import NO_TIMELINE
from ringleader.errors import NonFiniteLoss, StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, run_local
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.loop_position import LoopPosition
from ringleader.train.modes.token_ring.loop import TokenRingLoop
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.state.progress import Progress

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
ROWS, BATCH, SHARDS = 52, 16, 4

RING = {"intra_node": "token_ring", "inter_node": "token_ring"}
OPTIMIZERS = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.02),
}


def spec(shards: int = SHARDS, **changes: Any) -> dict[str, Any]:
    return {
        "name": "laps",
        "entrypoint": "laps:train",
        "workers": {"max": 1},
        "batch": {"global_size": BATCH, "logical_shards": shards},
        "sync": RING | changes,
        "debug": {"ledger": True},
    }


def rows(count: int = ROWS) -> TensorDataset:
    x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(0))[:count]
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def by_hand(kind: str, shards: int, epochs: int) -> list[Tensor]:
    """Plain torch: one slice after the other, each an optimizer step of which its share of the batch counts."""
    x, y = rows().tensors
    net = small_net()
    optimizer = OPTIMIZERS[kind](net)
    for _ in range(epochs):
        for start in range(0, ROWS, BATCH):
            size = min(BATCH, ROWS - start)
            for shard in range(shards):
                piece = slice(start + shard * size // shards, start + (shard + 1) * size // shards)
                before = [p.detach().clone() for p in net.parameters()]
                optimizer.zero_grad()
                F.cross_entropy(net(x[piece]), y[piece]).backward()
                optimizer.step()
                with torch.no_grad():
                    for p, old in zip(net.parameters(), before, strict=True):
                        p.copy_(old + (p - old) * ((piece.stop - piece.start) / size))
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_alone_it_is_plain_training_slice_by_slice(kind: str, shards: int, tmp_path: Path) -> None:
    """With one shard: ordinary training, one batch a step."""
    found: list[Tensor] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(OPTIMIZERS[kind](net))
        for _ in range(3):
            for x, y in session.batches(rows(), shuffle=False):
                session.step(F.cross_entropy(net(x), y))
        found.extend(p.detach().clone() for p in net.parameters())

    run_local(spec(shards), train, tmp_path)
    for ours, plain in zip(found, by_hand(kind, shards, 3), strict=True):
        # start + (end - start) is the end but for one rounding a slice.
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


class Twice(nn.Module):
    """Two weights that are added as views: autograd hands both the same memory as their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.ones(5, 2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.one[None] + self.other[None])[0]


@pytest.mark.parametrize("sync", [RING, {"intra_node": "local_sgd", "inter_node": "local_sgd"}])
def test_gradients_in_the_same_memory_are_clipped_once(sync: dict[str, Any], tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        net = session.model(Twice())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=1.0), clip_norm=0.5)
        for x, y in session.batches(rows(BATCH), shuffle=False):
            session.step(F.cross_entropy(net(x), y))
        moved = torch.cat([p.detach().view(-1) - 1 for p in net.parameters()])
        # Differences of float32 around one.
        torch.testing.assert_close(moved.norm(), torch.tensor(0.5), rtol=0, atol=1e-5)

    run_local(spec(1, **sync), train, tmp_path)


def test_a_weight_that_is_not_the_rows_is_refused(tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(OPTIMIZERS["sgd"](net))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y), weight=float(2 * len(y)))

    with pytest.raises(StepMisuse, match="weights slices by their rows"):
        run_local(spec(), train, tmp_path)


def test_every_step_and_every_row_is_counted_once(tmp_path: Path) -> None:
    seen: list[int] = []
    callbacks: list[float] = []
    rates: list[float] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=1.0))
        session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5))
        session.on_commit(lambda: callbacks.append(optimizer.param_groups[0]["lr"]))
        for _ in range(2):
            for x, y in session.batches(rows()):
                seen.append(len(y))
                rates.append(optimizer.param_groups[0]["lr"])
                session.step(F.cross_entropy(net(x), y), mean=x.mean())

    finished, sink = run_local(spec(), train, tmp_path)
    assert (finished.steps, finished.samples) == (8, 2 * ROWS)
    assert seen == ([4] * 12 + [1] * 4) * 2
    assert rates == [0.5**step for step in range(8) for _ in range(SHARDS)]
    assert callbacks == [0.5**step for step in range(1, 9)]
    assert list(sink.values) == list(range(1, 9))
    for epoch in range(2):
        taken = [row for step in range(epoch * 4 + 1, epoch * 4 + 5) for row in sink.rows[step][1].tolist()]
        assert sorted(taken) == list(range(ROWS))


def test_metrics_are_the_means_over_the_rows_of_each_batch(tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.0))
        for x, y in session.batches(rows(), shuffle=False):
            session.step(F.cross_entropy(net(x), y), mean=x.mean())

    _, sink = run_local(spec(), train, tmp_path)
    x, y = rows().tensors
    for step in range(4):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        assert sink.values[step + 1]["mean"] == pytest.approx(float(x[batch].mean()), abs=1e-6)
        loss = F.cross_entropy(small_net()(x[batch]), y[batch]).item()
        assert sink.values[step + 1]["loss"] == pytest.approx(loss)


def test_a_batch_of_fewer_rows_than_shards_is_a_step(tmp_path: Path) -> None:
    data = rows(BATCH * 3 + 2)

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.Adam(net.parameters(), lr=0.1))
        for _ in range(2):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))

    finished, sink = run_local(spec(), train, tmp_path)
    assert (finished.steps, finished.samples) == (8, 2 * len(data))
    assert sorted(sink.rows[4][0].tolist()) == [1, 3]


def test_a_loop_that_is_stopped_counts_what_was_applied(tmp_path: Path) -> None:
    """In the middle of a batch: that step is short, and nothing of it is lost or repeated."""

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for turn, (x, y) in enumerate(session.batches(rows())):
            if turn == SHARDS + 1:
                session.stop()
            session.step(F.cross_entropy(net(x), y))
        assert session.global_step == 2
        for turn, (x, y) in enumerate(session.batches(rows())):
            if turn == 3:
                break
            session.step(F.cross_entropy(net(x), y))
        session.evaluate(rows(), lambda batch: {"right": (net(batch[0]).argmax(1) == batch[1]).float()})
        assert session.global_step == 3
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))

    finished, sink = run_local(spec(), train, tmp_path)
    assert (finished.steps, finished.samples) == (7, BATCH + 2 * 4 + 3 * 4 + ROWS)
    assert [len(sink.rows[step][1]) for step in range(1, 8)] == [16, 8, 12, 16, 16, 16, 4]
    assert sink.rows[2][0].tolist() == [0] * 4 + [1] * 4


def test_a_loss_that_is_not_a_number_names_its_step() -> None:
    with ringleader.local_session(spec()) as session:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))

        def diverge() -> None:
            for turn, (x, y) in enumerate(session.batches(rows())):
                session.step(F.cross_entropy(net(x), y) * (float("nan") if turn == SHARDS else 1.0))

        with pytest.raises(NonFiniteLoss, match="step 2"):
            diverge()


def test_buffers_are_those_that_the_first_shard_left() -> None:
    with ringleader.local_session(spec()) as session:
        net = session.model(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            if len(y) > 1:
                session.step(F.cross_entropy(net(x), y))
            else:
                session.stop()
                session.step(net[0](x).sum())
        assert int(net[1].num_batches_tracked) == 3


@pytest.mark.parametrize(("opened", "heals", "applied"), [(0, 1, 0), (-1, 1, 5), (0, 0, 5)])
def test_who_was_healed_in_a_loop_and_got_no_tokens_holds_no_state(
    opened: int, heals: int, applied: int
) -> None:
    """Its weights hold what its donor owed: if all others are lost, there is nothing to go on from."""
    given = JobSpec.parse(spec())
    group: Any = SimpleNamespace(
        spec=given,
        parameters=[Parameter(torch.ones(20))],
        progress=Progress(heals=heals, opened=opened, transactions=applied or 5),
        inside=LoopPosition(),
        timeline=NO_TIMELINE,
        held=SimpleNamespace(models=()),
        trained=SimpleNamespace(parameters=[Parameter(torch.ones(20))]),
        unkept=None,
        first=None,
        update_inputs=None,
        kernels=None,
        beside=SimpleNamespace(repeated=None),
    )
    ring_loop, epoch = (
        TokenRingLoop(group, RecordedOutput(), torch.device("cpu")),
        Epoch.shuffled(rows=8, batch=4, shards=1, seed=0, epoch=0, shuffle=False),
    )
    loop = BatchLoop(0, 0, "", epoch, None, None, 0, None, LoaderProcesses(0))
    ring_loop.tokens.begin(loop)
    ring_loop.missed(loop)
    assert group.progress.transactions == applied
