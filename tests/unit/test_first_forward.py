"""What the first forward of each worker sets from its own slice, and keeps, is found and said."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from faults import FaultPlan
from test_leaving import RING, SERVERS, job, rows, worker
from test_unkept_state import LENGTH, WIDTH, Masked, Rotary, claims, spec, train
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.body.turn_state.first_forward import FirstForwardState
from ringleader.train.generation.context import MemberContext


class Shifted(nn.Module):
    """Centred by the first rows that come."""

    def __init__(self) -> None:
        super().__init__()
        self.shift: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.shift is None:
            self.shift = x.detach().mean((0, 1))
        return x - self.shift


class Noisy(nn.Module):
    """Adds what was drawn once."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()  # threads share the default one
        self.strength: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.strength is None:
            self.strength = torch.rand((), generator=self.generator).item()
        return x * self.strength


class Initialized(nn.Module):
    """Fills a buffer from the first rows, and has a flag for it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("loc", torch.zeros(WIDTH))
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.loc.copy_(x.detach().mean((0, 1)))
            self.ready = True
        return x - self.loc


class Ranged(nn.Module):
    """As observers of quantisation: a range of the first rows, which moves with later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(()))
        self.seen = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.seen:
            self.low.copy_(x.detach().min())
            self.seen = True
        else:
            self.low.lerp_(x.detach().min(), 0.1)
        return x - self.low


class RangedByAMethod(Ranged):
    def follow(self, low: Tensor, part: float) -> None:
        self.low += part * (low - self.low)

    def forward(self, x: Tensor) -> Tensor:
        if self.seen:
            self.follow(x.detach().min(), 0.1)
            return x - self.low
        self.seen = True
        self.low = x.detach().min().clone()
        return x - self.low


class RangedByAFactor(Ranged):
    def forward(self, x: Tensor) -> Tensor:
        part = 0.1 if self.seen else 1.0
        self.low.lerp_(x.detach().min(), part)
        self.seen = True
        return x - self.low


class RangedByWhatFollows(Ranged):
    def forward(self, x: Tensor) -> Tensor:
        old = 0.9 if self.seen else 0.0
        part = 1 - old
        if part:
            self.low += part * (x.detach().min() - self.low)
        self.seen = True
        return x - self.low


class CheckedOnce(nn.Module):
    """Has a running mean, and looks at its first rows without making anything of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.checked, self.width = False, 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.checked:
            assert x.dim() == 3
            self.checked, self.width = True, x.shape[-1]
        self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
        return x - self.mean


class MeasuredOnce(CheckedOnce):
    """The same, with a width that it measures in its first forward."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
        width = self.width if self.width else x.shape[-1]
        self.width = width
        return (x - self.mean) / width


class ReturnedFromOnce(CheckedOnce):
    """The same, with an end of its own for later forwards."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
        if self.checked:
            return x - self.mean
        self.checked = True
        return x - self.mean


class InitializedForAll(nn.Module):
    """The same with the flag among the buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("loc", torch.zeros(WIDTH))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.loc.copy_(x.detach().mean((0, 1)))
            self.ready.fill_(True)
        return x - self.loc


class Shown(nn.Module):
    """Keeps what it computes anew in each forward, and what shapes say."""

    def __init__(self) -> None:
        super().__init__()
        self.last_shape: tuple[int, ...] = ()
        self.rows = 0
        self.share = 0.0
        self.ones: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last_shape, self.rows = tuple(x.shape), len(x)
        self.share = 1 / self.rows
        if self.ones is None:
            self.ones = torch.ones(x.shape[1], 1)
        shares = torch.softmax(x.detach() @ x.detach().transpose(1, 2), -1)
        self.attention_map = shares
        return shares @ x * self.ones * self.share


ONCE: dict[str, type[nn.Module]] = {"1.shift": Shifted, "1.strength": Noisy, "1.ready": Initialized}


def why_once(path: str) -> str:
    return (
        f"the first forward pass of each worker sets state from its own rows, draws or weights ({path}), which is not "
        "committed: set it before the first loop, or register it, with the flag that it is set, as persistent buffers"
    )


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("path", ONCE)
def test_what_each_worker_sets_once_from_its_own_slice_is_named(
    path: str, workers: int, tmp_path: Path
) -> None:
    play = ThreadedCast(spec((workers, workers)), partial(train, make=ONCE[path]), artifacts=tmp_path).play()
    assert claims(play) == {(False, why_once(path))}


def test_who_joins_late_and_sets_it_anew_is_named(tmp_path: Path) -> None:
    faults = FaultPlan().kill("w1", at_step=1).hold("w0", at_step=2, for_generation=3)
    play = ThreadedCast(spec((1, 2)), partial(train, make=Shifted), faults, tmp_path).play()
    assert "w2" in play.finished
    assert claims(play) == {(False, why_once("1.shift"))}


@pytest.mark.parametrize("sync", ["ring", "parameter_server", "local_sgd"])
@pytest.mark.parametrize("make", [Shown, Rotary, Masked, InitializedForAll])
def test_what_workers_set_alike_or_in_each_forward_is_not(make: Any, sync: str, tmp_path: Path) -> None:
    play = ThreadedCast(spec((2, 2), sync=sync), partial(train, make=make), artifacts=tmp_path).play()
    assert {end.reproducible_why for name, end in play.finished.items() if name.startswith("w")} == {""}


def first_forward(model: nn.Module, *rows: Tensor, call: int = 1, saved: Any = ({}, ())) -> FirstForwardState:
    """What the turns of a new process have seen, which begins with what another one has saved."""
    held, calls = SimpleNamespace(models=[model], kept={}), SimpleNamespace(next=call)
    progress = SimpleNamespace(calls=calls)
    context = SimpleNamespace(same_bits=True, held=held, progress=progress, current=None)
    first = FirstForwardState(cast(MemberContext, context), lambda name: False, lambda finding: None)
    first.restore(saved)
    for each in rows:
        first.begin_turn()
        model(each)
        first.end_turn()
    return first


ROWS = [torch.full((2, LENGTH, WIDTH), float(n)) for n in range(3)]


@pytest.mark.parametrize("kind", [Ranged, RangedByAMethod, RangedByAFactor, RangedByWhatFollows])
def test_a_flag_by_which_a_forward_decides_what_it_writes_into_a_buffer_is_named(kind: Any) -> None:
    assert first_forward(kind(), *ROWS).why_other_bits == why_once("seen")


@pytest.mark.parametrize(
    "kind", [CheckedOnce, MeasuredOnce, ReturnedFromOnce, InitializedForAll, lambda: nn.BatchNorm1d(LENGTH)]
)
def test_flags_beside_buffers_that_each_forward_writes_alike_are_not(kind: Any) -> None:
    assert first_forward(kind(), *ROWS).why_other_bits == ""


def test_who_resumes_and_sets_another_value_says_so() -> None:
    saved = first_forward(Shifted(), *ROWS).state()
    other = first_forward(Shifted(), *ROWS)
    other.restore(saved)
    assert other.why_other_bits == ""
    again = first_forward(Shifted(), *ROWS[1:])
    again.restore(saved)
    assert again.why_other_bits == why_once("shift")
    late = first_forward(Shifted())
    late.restore(again.state())
    assert late.why_other_bits == why_once("shift")


class Stopping:
    """The best score so far, as lines between calls keep it."""

    def __init__(self) -> None:
        self.best: float | None = None

    def __call__(self, score: float) -> None:
        if self.best is None or score < self.best:
            self.best = score


def test_what_lines_between_calls_have_set_anew_before_the_next_loop_is_not() -> None:
    stopping, before = Stopping(), first_forward(nn.Identity(), *ROWS)
    stopping(0.7)
    saved = before.state()
    stopping(0.5)
    assert first_forward(nn.Identity(), *ROWS, call=2, saved=saved).why_other_bits == ""
    assert stopping.best == 0.5


class ShiftedLater(Shifted):
    """By the first rows that come after two others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.max() > 1 else x


def test_what_a_later_turn_sets_once_is_compared_with_what_another_worker_sets_in_a_later_call() -> None:
    saved = first_forward(ShiftedLater(), *ROWS).state()
    resumed = first_forward(ShiftedLater(), ROWS[2] + 1, ROWS[2] + 1, call=2, saved=saved)
    assert resumed.why_other_bits == why_once("shift")


def test_tables_for_texts_of_another_length_are_no_such_state() -> None:
    texts = [torch.ones(2, length, WIDTH) for length in (3, 4, 5, 6)]
    saved = first_forward(Rotary(), texts[1], texts[0]).state()
    again = first_forward(Rotary(), texts[0], texts[0])
    again.restore(saved)
    assert again.why_other_bits == ""


def test_lines_that_run_again_may_set_it_before_the_first_turn() -> None:
    saved, model = first_forward(Shifted(), *ROWS).state(), Shifted()
    model(ROWS[2])
    again = first_forward(model)
    again.restore(saved)
    for each in ROWS:
        again.begin_turn()
        model(each)
        again.end_turn()
    assert again.why_other_bits == why_once("shift")


class Calibrated(nn.Module):
    """Scaled by what its first forward in eval mode makes of the weights; or that forward alone is."""

    def __init__(self, *, trains: bool) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)
        self.trains = trains
        self.scale: Tensor | None = None
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            if self.cache is None:
                self.cache = self.net.weight.detach().clone()
            if self.trains and self.scale is None:
                self.scale = self.cache.abs().mean()
            return F.linear(x, self.cache)
        return self.net(x) * (1.0 if self.scale is None else self.scale)


@pytest.mark.parametrize("sync", [RING, SERVERS], ids=["ring", "servers"])
@pytest.mark.parametrize("trains", [True, False])
def test_what_a_score_makes_is_missed_by_who_joins(
    trains: bool, sync: dict[str, Any], tmp_path: Path
) -> None:
    """Who comes behind the evaluation is given its scores. A cache that is read in eval mode alone is nobody's."""

    def program(session: Session) -> None:
        net, data = session.model(Calibrated(trains=trains)), rows()
        with torch.no_grad():  # threads share the default generator
            for parameter in net.parameters():
                parameter.copy_(torch.linspace(-0.5, 0.7, parameter.numel()).view_as(parameter))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(2):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))
            session.evaluate(data, lambda batch: {"mean": net(batch[0]).mean(dim=1)})

    faults = FaultPlan().resize(at_step=8, workers_min=1, workers_max=3)
    for number in range(2):
        faults = faults.linger(worker(sync, number), since_step=8, for_generation=2)
    play = ThreadedCast(job(sync, workers={"min": 1, "max": 2}), program, faults, artifacts=tmp_path).play()
    assert (play.outcome, play.worlds) == ("succeeded", [2, 3]), (play.reason, play.message)
    why = {each.reproducible_why for each in play.finished.values()}
    told = [(data["variable"], data["how"]) for data in play.reported("program.differs")]
    if trains:
        assert told == [("Calibrated.scale", "is set where scores are computed, and read by training")]
        assert all("Calibrated.scale (test_first_forward.py:" in each for each in why)
    else:
        assert (told, why) == ([], {""})
