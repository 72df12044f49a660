"""State that forwards change and no step commits is found and said; what torch's own modules keep is no such state."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from faults import FaultPlan
from play import Play
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import TensorDataset

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.generation.context import MemberContext
from ringleader.train.local import run_local
from ringleader.train.state.hidden_state import HiddenState

BATCH, STEPS, WIDTH, LENGTH = 16, 6, 8, 5


def spec(workers: tuple[int, int] = (1, 1), **keys: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "unkept",
            "entrypoint": "m:f",
            "workers": {"min": workers[0], "max": workers[1]},
            "batch": {"global_size": BATCH, "logical_shards": 4},
            **keys,
        }
    )


def rows() -> TensorDataset:
    x = torch.randn(STEPS * BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.mean(dim=(1, 2)))


def train(session: Session, make: Callable[[], nn.Module]) -> None:
    net = session.model(nn.Sequential(nn.Linear(WIDTH, WIDTH), make()))
    generator = torch.Generator().manual_seed(1)  # threads share the default one
    for parameter in net[0].parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.01))
    for x, y in session.batches(rows()):
        session.step(F.mse_loss(net(x).mean(dim=(1, 2)), y))


class Counter(nn.Module):
    """Gives the less the more forwards there were."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        return x / self.forwards


class Rebound(nn.Module):
    """Goes on from the tensor that the forward before left."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.last = 0.5 * self.last + x.detach().mean()
        return x + self.last


class InPlace(Rebound):
    def forward(self, x: Tensor) -> Tensor:
        self.last.mul_(0.5).add_(x.detach().mean())
        return x + self.last


class Buffered(InPlace):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("last", torch.zeros(()), persistent=False)


class Persistent(InPlace):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("last", torch.zeros(()))


CHANGING: dict[str, type[nn.Module]] = {
    "1.forwards": Counter,
    "1.last": Rebound,
    "1.last ": InPlace,
    "1.last  ": Buffered,
}
"""By what is named; spaces tell the kinds apart."""


def why(path: str) -> str:
    return f"forward passes change state that is not committed ({path.strip()}): register it as a persistent buffer"


def claims(play: Play) -> set[tuple[bool, str]]:
    assert play.outcome == "succeeded", (play.reason, play.message)
    return {(end.reproducible, end.reproducible_why) for end in play.finished.values()}


@pytest.mark.parametrize("path", CHANGING)
def test_state_that_forwards_change_is_named(path: str, tmp_path: Path) -> None:
    end = run_local(spec(), partial(train, make=CHANGING[path]), tmp_path)[0]
    assert (end.reproducible, end.reproducible_why) == (False, why(path))


@pytest.mark.parametrize("sync", ["ring", "parameter_server", "local_sgd"])
def test_every_member_says_so_with_one_slice_a_worker_too(sync: str, tmp_path: Path) -> None:
    job = spec((4, 4), sync=sync)
    play = ThreadedCast(job, partial(train, make=Counter), artifacts=tmp_path).play()
    assert {end.reproducible_why for name, end in play.finished.items() if name.startswith("w")} == {
        why("1.forwards")
    }


def test_who_joins_late_says_what_was_found_before(tmp_path: Path) -> None:
    faults = FaultPlan().kill("w1", at_step=4).hold("w0", at_step=5, for_generation=3)
    play = ThreadedCast(spec((1, 2)), partial(train, make=Counter), faults, tmp_path).play()
    assert "w2" in play.finished
    assert claims(play) == {(False, why("1.forwards"))}


class Mean(nn.Module):
    """The first of what a module gives."""

    def __init__(self, part: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.part, self.times = part, times

    def forward(self, x: Tensor) -> Tensor:
        out = self.part(*[x] * self.times)
        return out[0] if isinstance(out, tuple) else out


class Swapped(nn.Module):
    """Channels second, as convolutions and norms have them."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x.transpose(1, 2)).transpose(1, 2)


class Rotary(nn.Module):
    """Tables made in the first forward and again where a longer text comes."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = 0
        self.table: Tensor | None = None
        self.register_buffer("angles", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.longest:
            self.longest = x.shape[1]
            self.angles = torch.arange(self.longest, dtype=torch.float32)[:, None]
            self.table = self.angles.cos()
        assert self.table is not None
        return x * self.table[: x.shape[1]]


class Masked(nn.Module):
    """Makes the same mask in each forward, and leaves a loss of its own."""

    def forward(self, x: Tensor) -> Tensor:
        self.mask = torch.ones(x.shape[1], 1)
        self.length = x.shape[1]
        out = x * self.mask
        self.loss = out.square().mean() if x.requires_grad else None
        return out


STEADY: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: Swapped(nn.BatchNorm1d(WIDTH)),
    "instance norm": lambda: Swapped(nn.InstanceNorm1d(WIDTH, track_running_stats=True)),
    "dropout": lambda: nn.Dropout(0.5),
    "lstm": lambda: Mean(nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.1)),
    "gru": lambda: Mean(nn.GRU(WIDTH, WIDTH, batch_first=True)),
    "attention": lambda: Mean(nn.MultiheadAttention(WIDTH, 2, batch_first=True), times=3),
    "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True),
    "weight norm of old": lambda: nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm of old": lambda: nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)),
    "compiled": lambda: torch.compile(nn.Linear(WIDTH, WIDTH), backend="eager"),  # type: ignore[return-value]
    "rotary": Rotary,
    "masked": Masked,
    "persistent buffer": Persistent,
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", STEADY)
def test_what_modules_keep_for_themselves_is_no_such_state(kind: str, tmp_path: Path) -> None:
    end = run_local(spec(), partial(train, make=STEADY[kind]), tmp_path)[0]
    assert (end.reproducible, end.reproducible_why) == (True, "")


def found(model: nn.Module, *lengths: int) -> str:
    """What turns with texts of these lengths show."""
    held = SimpleNamespace(models=[model])
    context = SimpleNamespace(same_bits=True, held=held, current=None)
    unkept = HiddenState(cast(MemberContext, context), lambda name: False)
    for length in lengths:
        unkept.begin_turn()
        model(torch.ones(2, length, WIDTH))
        unkept.end_turn()
    return unkept.found.why_other_bits


@pytest.mark.parametrize("make", [nn.LazyLinear, lambda width: Swapped(nn.LazyBatchNorm1d())])
def test_modules_that_take_their_shape_in_the_first_forward_are_no_such_state(make: Any) -> None:
    assert found(make(WIDTH), *[LENGTH] * 8) == ""


def test_tables_that_grow_now_and_then_are_no_such_state_and_what_changes_later_is() -> None:
    assert found(Rotary(), 1, 2, 3, 3, 4, 4, 4, 4, 5, 6) == ""
    late = Counter()
    assert found(nn.Sequential(Rotary(), late), *[LENGTH] * 4) == why("1.forwards")


def test_many_are_counted_and_a_job_without_the_claim_is_not_looked_at(tmp_path: Path) -> None:
    told = found(nn.Sequential(*(Counter() for _ in range(12))), *[LENGTH] * 4)
    assert "(0.forwards, 1.forwards, 10.forwards, 11.forwards, 2.forwards and 7 more)" in told
    end = run_local(spec(sync={"reproducible": False}), partial(train, make=Counter), tmp_path)[0]
    assert end.reproducible_why == "sync.reproducible is false for this job"


class Viewing(nn.Module):
    """Its mean is a part of a buffer, or lies beside it."""

    def __init__(self, place: int, *, persistent: bool) -> None:
        super().__init__()
        memory = torch.zeros(3, WIDTH)
        self.register_buffer("all", memory[:2], persistent=persistent)
        self.mean = memory[place]

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
        return x - self.mean


@pytest.mark.parametrize(
    ("place", "persistent", "told"), [(0, True, False), (2, True, True), (0, False, True)]
)
def test_a_view_of_a_persistent_buffer_is_committed_with_it(
    place: int, persistent: bool, told: bool, tmp_path: Path
) -> None:
    program = partial(train, make=lambda: Viewing(place, persistent=persistent))
    finished, _ = run_local(spec(), program, tmp_path)
    assert ("1.mean" in finished.reproducible_why, finished.reproducible) == (told, not told)
