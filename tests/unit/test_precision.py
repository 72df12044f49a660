"""16-bit precision: user code runs under autocast and nothing else does; the loss scale of fp16 costs no bit."""

import copy
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import FaultPlan, Play
from threaded_cast import Shot, ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.comm.schedules.schedule import PARTIALS
from ringleader.errors import NonFiniteLoss
from ringleader.spec import JobSpec
from ringleader.sync.side import SUM
from ringleader.train import Session
from ringleader.train.local import local_session, run_local
from ringleader.train.scaling import FIRST, GROWTH_INTERVAL, LEAST, Scaling
from ringleader_jobs.digits import Digits

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
ROWS, BATCH, EPOCHS, STEPS_AN_EPOCH = 72, 16, 2, 5
STEPS = EPOCHS * STEPS_AN_EPOCH
OVERFLOWS = (2, 6)
"""Committed steps behind which a step overflows, in each run."""
SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


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
    """A table whose gradients are rows, two optimisers of which one clips, a schedule, evaluations; overflows."""
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
    spec = job(workers={"min": 1, "max": 4})
    faults = FaultPlan().resize(at_step=1, minimum=1, maximum=1).resize(at_step=4, minimum=3, maximum=3)
    faults = faults.hold("w0", at_step=5, for_generation=3)
    play = ThreadedCast(spec, train, faults, tmp_path).play()
    assert {1, 3} <= set(play.worlds)
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
    ours = Scaling()
    scale, good = torch.tensor(FIRST), torch.tensor(0, dtype=torch.int32)
    for _ in range(5 * GROWTH_INTERVAL):
        overflowed = bool(torch.rand((), generator=generator) < 3 / GROWTH_INTERVAL)
        torch._amp_update_scale_(scale, good, torch.tensor(float(overflowed)), 2.0, 0.5, GROWTH_INTERVAL)
        ours.commit(overflowed=overflowed)
        assert (ours.scale, ours.good) == (scale.item(), good.item())
    assert ours.skipped > 5


def test_the_scale_grows_as_far_as_float32_reaches() -> None:
    scaling = Scaling()
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
    with pytest.raises(NonFiniteLoss, match="the gradient of step 33 is not finite"):
        run_local(job(), never, tmp_path)


# --- where autocast is on ---------------------------------------------------------------------------------------------


def casts() -> torch.dtype | None:
    """What a product of matrices is made in, on this thread."""
    dtype = (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    assert torch.is_autocast_enabled("cpu") == (dtype is not torch.float32)
    return dtype


class Watched(TensorDataset):
    """Sees in what its rows are loaded."""

    def __init__(self) -> None:
        super().__init__(*DATA.tensors)
        self.seen: set[torch.dtype | None] = set()

    def __getitem__(self, row: int) -> Any:
        self.seen.add(casts())
        return super().__getitem__(row)

    __getitems__ = None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_loop_body_and_scores_are_cast_and_nothing_else(precision: str) -> None:
    full, narrow = torch.float32, NARROW.get(precision, torch.float32)
    data, outside, inside = Watched(), [], []

    def score(batch: Any) -> dict[str, Tensor]:
        inside.append(casts())
        return {"one": net(batch[0])[:, 0] * 0 + 1}

    with local_session(job(precision)) as session:
        net = session.model(copy.deepcopy(NET))
        net[0].weight.register_hook(lambda _: outside.append(casts()))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        optimizer.register_step_pre_hook(lambda *_: outside.append(casts()))
        session.on_commit(lambda: outside.append(casts()))
        for x, y, _ in session.batches(data):
            inside.append(casts())
            session.step(F.cross_entropy(net(x), y))
            outside.append(casts())
        outside.append(casts())
        assert session.evaluate(data, score) == {"one": 1.0}
        outside.append(casts())
        assert {p.dtype for p in net.parameters()} | {p.grad.dtype for p in net.parameters()} == {full}
    assert (set(inside), set(outside), data.seen) == ({narrow}, {full}, {full})


def left(session: Session, data: Watched, how: str) -> None:
    """A loop over the data that ends early."""
    net = session.model(copy.deepcopy(NET))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for x, y, _ in session.batches(data):
        if how == "raise":
            raise KeyError
        if how == "break":
            break
        if how == "stop":
            session.stop()
        if how == "its own":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                session.step(F.cross_entropy(net(x), y))
            continue
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("how", ["raise", "break", "stop", "its own"])
def test_however_a_loop_is_left_autocast_is_off_behind_it(how: str) -> None:
    data = Watched()
    with local_session(job()) as session:
        with suppress(KeyError):
            left(session, data, how)
        assert casts() is torch.float32
    assert data.seen == {torch.float32}
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16  # torch's default


def test_an_iterator_that_is_kept_is_left_with_the_session() -> None:
    kept: list[Iterator[Any]] = []
    with local_session(job()) as session:
        net = session.model(copy.deepcopy(NET))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        kept.append(session.batches(DATA))
        next(kept[0])
        assert casts() is torch.float16
    assert casts() is torch.float32


def test_other_threads_are_not_cast() -> None:
    seen: list[torch.dtype | None] = []
    with local_session(job()) as session:
        net = session.model(copy.deepcopy(NET))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y, _ in session.batches(DATA):
            thread = threading.Thread(target=lambda: seen.append(casts()))
            thread.start()
            thread.join()
            session.step(F.cross_entropy(net(x), y))
    assert seen == [torch.float32] * STEPS_AN_EPOCH * 4


def test_a_loss_in_16_bits_is_scaled_in_32() -> None:
    with local_session(job(workers={"max": 1}, batch={"global_size": BATCH})) as session:
        net = session.model(nn.Linear(6, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.01))
        before = net.weight.detach().clone()
        for x, *_ in session.batches(DATA):
            loss = net(x).pow(2).mean() + 8
            assert loss.dtype is torch.float16
            session.step(loss)  # the scale, 65536, does not fit in there
            assert not torch.equal(net.weight, before)


# --- other ways -------------------------------------------------------------------------------------------------------

OTHER_WAYS: dict[str, dict[str, Any]] = {
    "local_sgd": {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 2},
    "token_ring": {"inter_node": "token_ring", "intra_node": "token_ring"},
    "ssp": SERVERS | {"consistency": "ssp", "staleness": 1},
    "async": SERVERS | {"consistency": "async"},
    "first come": SERVERS | {"backup_workers": 1},
    "int8": {"codec": "int8"},
}


def plain(session: Session) -> None:
    net = session.model(copy.deepcopy(NET))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    seen = set()
    for _ in range(EPOCHS):
        for x, y, _ in session.batches(DATA):
            seen.add(casts())
            session.step(F.cross_entropy(net(x), y))
        seen.add(casts())
    assert seen == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_bf16_trains_in_every_way(way: str, tmp_path: Path) -> None:
    play = ThreadedCast(job("bf16", sync=OTHER_WAYS[way]), plain, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert "loss_scale" not in play.values[0][1]


class Pixels(Digits):
    """The digits, read a slice at a time."""

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        return self.image[rows], self.label[rows]


def digits(session: Session) -> None:
    rows, epochs = Pixels(train=True), 5
    net = session.model(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    total = session.total_steps(rows, epochs=epochs)
    session.scheduler(torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total))
    for _ in range(epochs):
        for image, label in session.batches(rows, collate=tuple):
            session.step(F.cross_entropy(net(image), label))
    session.evaluate(
        Pixels(train=False), lambda b: {"accuracy": (net(b[0]).argmax(1) == b[1]).float()}, collate=tuple
    )


def test_16_bits_learn_digits_like_32(tmp_path: Path) -> None:
    accuracy = {}
    for precision in ("fp32", "bf16", "fp16"):
        spec = job(precision, batch={"global_size": 64}, workers={"max": 1}, debug={})
        accuracy[precision] = run_local(spec, digits, tmp_path)[0].scores["accuracy"]
    assert accuracy["fp32"] > 0.9
    for precision in NARROW:  # a point: rows of the test set that stand at the border of two digits
        assert accuracy[precision] > accuracy["fp32"] - 0.01
