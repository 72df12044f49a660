"""The loss scale of fp16 costs no bit: an overflow is skipped by all, whoever is lost, joins or starts anew."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from threaded_cast import Shot, ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.comm.schedules.schedule import PARTIALS
from ringleader.errors import NonFiniteLoss
from ringleader.exchange.side_channel import SUM
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import local_session, run_local
from ringleader.train.state.loss_scale import FIRST, GROWTH_INTERVAL, LEAST, LossScale, finite

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
ROWS, BATCH, EPOCHS, STEPS_AN_EPOCH = 72, 16, 2, 5
STEPS = EPOCHS * STEPS_AN_EPOCH
OVERFLOWS = (2, 6)
"""Committed steps behind which a step overflows, in each run."""
SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}


def job(precision: str = "fp16", **changes: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "narrow",
        "entrypoint": "narrow:train",
        "workers": {"min": 1, "max": 2},
        "batch": {"global_size": BATCH, "logical_shards": 4},
        "precision": precision,
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


def drawn() -> tuple[nn.Module, nn.Module, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    bag = nn.EmbeddingBag(ROWS, 6, sparse=True)
    return net, bag, TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long(), torch.arange(ROWS)[:, None])


NET, BAG, DATA = drawn()
"""Copied by every member: the generator that draws weights is shared by all threads."""


def train(session: Session) -> None:
    """A table whose gradients are rows, two optimizers of which one clips, a schedule, evaluations; overflows."""
    net, bag = session.model(copy.deepcopy(NET)), session.model(copy.deepcopy(BAG))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), clip_norm=0.05)
    session.optimizer(torch.optim.SGD(bag.parameters(), lr=0.1))
    session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7))

    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0] + bag(batch[2])).argmax(dim=1) == batch[1]).float()}

    for _ in range(EPOCHS):
        for x, y, row in session.batches(DATA):
            blown_up = 1e6 if session.global_step in OVERFLOWS else 1.0
            session.step(F.cross_entropy(net(x + bag(row)), y) * blown_up)
        session.evaluate(DATA, score)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one process that computes every shard itself."""
    return run_local(job(), train, tmp_path_factory.mktemp("alone"))[0].digest


def check(play: Play, digest: str) -> None:
    """The promises that hold whatever happened."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == digest
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    settled = play.settled_rows()
    for epoch in range(EPOCHS):
        first, last = epoch * STEPS_AN_EPOCH, (epoch + 1) * STEPS_AN_EPOCH
        assert sorted(row for step, _, row in settled if first < step <= last) == list(range(ROWS))
    told = {step: (values["loss_scale"], values["skipped_updates"]) for step, values in play.values}
    assert told == {step: scale_after(step) for step in range(1, STEPS + 1)}
    assert {finished.skipped_updates for finished in play.finished.values()} == {len(OVERFLOWS)}


def scale_after(step: int) -> tuple[float, float]:
    skipped = sum(step > at for at in OVERFLOWS)
    return FIRST / 2**skipped, float(skipped)


WAYS: dict[str, dict[str, Any]] = {
    "ring": {},
    "server": {"sync": SERVERS},
    "two servers": {"sync": SERVERS | {"servers": 2}},
    "backed": {"sync": SERVERS | {"servers": 2, "server_backups": 1}},
    "copies": {"sync": {"inter_node": "ring", "intra_node": "parameter_server", "servers": 2}},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_overflow_is_skipped_by_all_and_the_bits_are_those_of_one_process(
    way: str, alone: str, tmp_path: Path
) -> None:
    check(ThreadedCast(job(**WAYS[way]), train, artifacts=tmp_path).play(), alone)


@pytest.mark.parametrize("sync", [{"codec": "bf16"}, {"algorithm": "ring", "reproducible": False}])
def test_all_agree_on_an_overflow_where_bits_depend_on_the_world(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    play = ThreadedCast(job(sync=sync), train, artifacts=tmp_path).play()
    check(play, play.digest)


@pytest.mark.parametrize("at", [OVERFLOWS[0], OVERFLOWS[0] + 1], ids=["in the overflow", "behind it"])
@pytest.mark.parametrize(("way", "lost"), [("ring", "w1"), ("two servers", "w3")])
def test_a_worker_lost_around_an_overflow_costs_no_bit(
    way: str, lost: str, at: int, alone: str, tmp_path: Path
) -> None:
    faults = FaultPlan().kill(lost, at_step=at, phase="exchange")
    play = ThreadedCast(job(**WAYS[way]), train, faults, tmp_path).play()
    assert [loss["worker"] for loss in play.reported("worker.lost")] == [lost]
    check(play, alone)


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_server_lost_while_all_agree_on_an_overflow_costs_no_bit(
    nth: int, alone: str, tmp_path: Path
) -> None:
    shot = Shot("s0", 1, SUM + PARTIALS, nth)
    play = ThreadedCast(job(**WAYS["backed"]), train, artifacts=tmp_path, shots=(shot,)).play()
    assert [loss["worker"] for loss in play.reported("worker.lost")] == ["s0"]
    check(play, alone)


def test_who_joins_takes_over_the_scale(alone: str, tmp_path: Path) -> None:
    faults = (  # the step in which w0 hears of a generation is the last of the one before
        FaultPlan()
        .resize(at_step=1, workers_min=4, workers_max=4)
        .hold("w0", at_step=2, for_generation=2)
        .resize(at_step=4, workers_min=2, workers_max=2)
        .hold("w0", at_step=5, for_generation=3)
        .resize(at_step=7, workers_min=3, workers_max=3)
        .hold("w0", at_step=8, for_generation=4)
    )
    play = ThreadedCast(job(workers={"min": 1, "max": 1}), train, faults, tmp_path).play()
    assert play.worlds == [1, 4, 2, 3]
    check(play, alone)


@pytest.mark.parametrize("way", ["ring", "two servers"])
def test_a_checkpoint_holds_the_scale_for_any_world(way: str, alone: str, tmp_path: Path) -> None:
    place = tmp_path / "saved"
    spec = job(checkpoint={"every_steps": 4}, **WAYS[way])
    faults = FaultPlan().kill("w0", at_step=5, once=place).kill("w1", at_step=5, once=place)
    faults = faults.kill("s0", at_step=5, phase="exchange", once=place)
    faults = faults.kill("s1", at_step=5, phase="exchange", once=place)
    first = ThreadedCast(spec, train, faults, tmp_path / "1", checkpoints=str(place)).play()
    assert first.outcome == "failed"
    wider = job(checkpoint={"every_steps": 4}, workers={"min": 3, "max": 3}, **WAYS[way])
    second = ThreadedCast(wider, train, artifacts=tmp_path / "2", attempt=2, checkpoints=str(place)).play()
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [4]
    assert second.digest == alone
    assert second.values[-1][1]["skipped_updates"] == len(OVERFLOWS)


def test_a_skipped_step_changes_no_weight_and_no_schedule_and_counts() -> None:
    seen: list[tuple[int, float, Tensor]] = []
    with local_session(job()) as session:
        net = session.model(copy.deepcopy(NET))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=1.0, weight_decay=0.1))
        session.scheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
        session.on_commit(
            lambda: seen.append(
                (session.global_step, optimizer.param_groups[0]["lr"], net[0].weight.detach().clone())
            )
        )
        for x, y, _ in session.batches(DATA):
            session.step(F.cross_entropy(net(x), y) * (1e6 if session.global_step == 2 else 1.0))
    assert [(step, rate) for step, rate, _ in seen] == [
        (1, 0.5),
        (2, 0.25),
        (3, 0.25),
        (4, 0.125),
        (5, 0.0625),
    ]
    weights = [weight for _, _, weight in seen]
    changed = [not torch.equal(*pair) for pair in pairwise(weights)]
    assert changed == [True, False, True, True]


class InFull(nn.Module):
    """A network that autocast leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def in_full(session: Session) -> None:
    net = session.model(InFull())
    session.optimizer(torch.optim.AdamW(net.parameters(), lr=0.05), clip_norm=0.01)
    for _ in range(EPOCHS):
        for x, y, _ in session.batches(DATA):
            session.step(F.binary_cross_entropy_with_logits(net(x).sum(dim=1), y.float()), weight=3.0)


def test_a_scale_changes_no_bit_also_where_gradients_are_clipped(tmp_path: Path) -> None:
    digests = {run_local(job(precision), in_full, tmp_path)[0].digest for precision in ("fp32", "fp16")}
    assert len(digests) == 1


def test_the_scale_moves_as_torch_moves_it() -> None:
    generator = torch.Generator().manual_seed(3)
    ours = LossScale()
    scale, good = torch.tensor(FIRST), torch.tensor(0, dtype=torch.int32)
    for _ in range(5 * GROWTH_INTERVAL):
        overflowed = bool(torch.rand((), generator=generator) < 3 / GROWTH_INTERVAL)
        torch._amp_update_scale_(scale, good, torch.tensor(float(overflowed)), 2.0, 0.5, GROWTH_INTERVAL)
        ours.commit(overflowed=overflowed)
        assert (ours.scale, ours.good) == (scale.item(), good.item())
    assert ours.skipped > 5


def test_the_scale_grows_as_far_as_float32_reaches() -> None:
    scaling = LossScale()
    for _ in range(200 * GROWTH_INTERVAL):
        scaling.commit(overflowed=False)
    assert torch.isfinite(torch.tensor(scaling.scale, dtype=torch.float32))


class NotANumber(torch.autograd.Function):
    """The gradient of it is no number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.nan


def never(session: Session) -> None:
    net = session.model(copy.deepcopy(NET))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1.0))
    for _ in range(20):
        for x, y, _ in session.batches(DATA):
            session.step(NotANumber.apply(F.cross_entropy(net(x), y)))  # type: ignore[no-untyped-call]


def test_a_gradient_that_is_no_number_at_any_scale_ends_the_job(tmp_path: Path) -> None:
    assert FIRST * 0.5**32 == LEAST
    with pytest.raises(
        NonFiniteLoss, match="the gradients of step 33 and the steps before it are not finite"
    ):
        run_local(job(), never, tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3.4e38])
@pytest.mark.parametrize("sparse", [False, True])
def test_one_value_among_many_says_whether_a_gradient_is_finite(value: float, sparse: bool) -> None:
    parameters = [nn.Parameter(torch.zeros(4, 70)) for _ in range(3)]
    for parameter in parameters[:2]:
        parameter.grad = torch.ones(4, 70)
    parameters[1].grad[2, 61] = value
    if sparse:
        parameters[1].grad = parameters[1].grad.to_sparse(1).coalesce()
        parameters[0].grad = torch.sparse_coo_tensor(torch.zeros(1, 0).long(), torch.zeros(0, 70), (4, 70))
    assert finite(parameters) == (value == 3.4e38)
