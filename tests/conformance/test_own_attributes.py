"""What an optimizer keeps in attributes of its own is committed beside its state: the bits of one process, whoever is
lost, and over a pause and a restart."""

import copy
from collections.abc import Callable
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from faults import FaultPlan
from own_optimizers import CARRYING, HARMLESS, Heavy, Once, Plain, WarmedUp
from play import Play
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import TensorDataset
from undisturbed import undisturbed

from ringleader.comm.seal import Seal
from ringleader.optim import LAMB, LARS
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.body.unsaved_attributes import UnsavedAttributes
from ringleader.train.local import run_local
from ringleader.train.modes.registry import mode_of
from ringleader.train.state.optimizers.own_attributes import OwnAttributes
from ringleader.train.state.state_transfer import StateTransfer
from ringleader.train.state.training_state import TrainingState

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
OPTIMIZERS = CARRYING | HARMLESS
SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
LOCAL = {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 2}
MODES: dict[str, Any] = {"ring": "ring", "server": SERVERS | {"servers": 1}}
MORE_MODES: dict[str, Any] = {
    "backed": SERVERS | {"servers": 2, "server_backups": 1},
    "copies": {"inter_node": "ring", "intra_node": "parameter_server", "servers": 2},
}
OTHER_MODES: dict[str, Any] = {"rounds": LOCAL, "parts": SERVERS | {"servers": 2}}

NO_FAULTS = FaultPlan()
SEAL = Seal(b"a secret of thirty-two bytes, all", "1")


def drawn() -> tuple[nn.Module, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 6, generator=generator)
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), TensorDataset(x, (x[:, 0] > 0).long())


NET, DATA = drawn()
"""Copied by every member: the generator that draws weights is shared by all threads."""


def job(mode: str, world: int = 2) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "own",
            "entrypoint": "own:train",
            "workers": {"min": world, "max": world},
            "batch": {"global_size": 8, "logical_shards": 4},
            "checkpoint": {"every_steps": 4},
            "sync": (MODES | MORE_MODES | OTHER_MODES)[mode],
        }
    )


def train(name: str, session: Session) -> None:
    train_by(OPTIMIZERS[name], session)


def train_by(make: Callable[..., Optimizer], session: Session) -> None:
    net = session.model(copy.deepcopy(NET))
    session.optimizer(make(net.parameters()))
    for _ in range(3):
        for x, y in session.batches(DATA, shuffle=False):
            session.step(F.cross_entropy(net(x), y))


@cache
def program(name: str) -> Callable[[Session], None]:
    return partial(train, name)


def alone(name: str, mode: str) -> str:
    """The digest of one process that computes every shard itself."""
    return undisturbed(job(mode), program(name))[0].digest


def play(
    name: str, mode: str, place: Path, faults: FaultPlan = NO_FAULTS, attempt: int = 1, *, saves: bool = True
) -> Play:
    saved = str(place / "saved") if saves else None
    return ThreadedCast(
        job(mode), partial(train, name), faults, place / str(attempt), checkpoints=saved, attempt=attempt
    ).play()


def lost(mode: str) -> str:
    return f"w{1 + job(mode).sync.server_count}"


def killed(name: str, mode: str, place: Path) -> Play:
    return play(name, mode, place, FaultPlan().kill(lost(mode), at_step=3), saves=False)


def killed_server(name: str, mode: str, place: Path) -> Play:
    return play(name, mode, place, FaultPlan().kill("s1", at_step=5, phase="committed"), saves=False)


def paused(name: str, mode: str, place: Path) -> Play:
    first = play(name, mode, place, FaultPlan().pause(at_step=5))
    assert first.outcome == "paused", (first.reason, first.message)
    return play(name, mode, place, attempt=2)


def restarted(name: str, mode: str, place: Path) -> Play:
    faults = FaultPlan()
    for one in ("s0", "w0", "w1", "w2"):
        faults = faults.kill(one, at_step=7, once=place / "saved", later=True)
    first = play(name, mode, place, faults)
    assert first.outcome == "failed", (first.reason, first.message)
    return play(name, mode, place, attempt=2)


def held_by(make: Callable[..., Optimizer]) -> TrainingState:
    held = TrainingState()
    held.models.append(copy.deepcopy(NET))
    held.add_optimizer(make(held.models[0].parameters()), None)
    return held


def trained(held: TrainingState, steps: range) -> list[Tensor]:
    (net,), ((optimizer, _),) = held.models, held.optimizers
    for step in steps:
        optimizer.zero_grad()
        F.cross_entropy(net(DATA.tensors[0][step::8]), DATA.tensors[1][step::8]).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def given(held: TrainingState, other: TrainingState) -> None:
    """As a peer gets it."""
    payload = StateTransfer(held).payload({}, SEAL)
    StateTransfer(other).restore(payload, SEAL)


@pytest.mark.parametrize("behind", [0, 1, 5], ids=["anew", "after-one", "after-five"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_whoever_is_healed_goes_on_with_the_same_bits(name: str, behind: int) -> None:
    donor, healed = held_by(OPTIMIZERS[name]), held_by(OPTIMIZERS[name])
    trained(healed, range(behind))
    trained(donor, range(4))
    given(donor, healed)
    ends = [trained(held, range(4, 8)) for held in (donor, healed)]
    assert all(map(torch.equal, *ends))
    given(healed, donor)
    ends = [trained(held, range(8)) for held in (donor, healed)]
    assert all(map(torch.equal, *ends)), "and gives on what it was given"


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, partial(LAMB, lr=0.1)])
def test_optimizers_without_own_attributes_are_saved_as_ever(kind: Callable[..., Optimizer]) -> None:
    held = held_by(kind)
    schedule = torch.optim.lr_scheduler.ExponentialLR(held.optimizers[0][0], 0.9)
    trained(held, range(3))
    schedule.step()
    assert set(StateTransfer(held).state({})["optimizers"][0]) == {"state", "param_groups"}


class Placed(Plain):
    """Knows where it is, and follows a clock only when it is told to."""

    def __init__(self, weights: Any, rank: int) -> None:
        super().__init__(weights)
        self.rank, self.betas, self.phase, self.t = rank, (0.9, 0.99), "warm", 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.t = (self.t + 1) % 4


def test_what_is_as_it_was_made_stays_each_members_own() -> None:
    donor, healed = held_by(partial(Placed, rank=0)), held_by(partial(Placed, rank=1))
    trained(donor, range(4))
    trained(healed, range(3))
    given(donor, healed)
    optimizer: Any = healed.optimizers[0][0]
    assert (optimizer.rank, optimizer.t) == (1, 0), "a count that is back where it began, too"


class Flat(Heavy):
    """Weights in one memory: a peer's flag would say that they are, there."""

    flat: Tensor | None = None

    def step(self, closure: Any = None) -> None:
        if self.flat is None:
            self.flat = torch.cat([p.detach().flatten() for p in self.weights])
            for p, part in zip(self.weights, self.flat.split([p.numel() for p in self.weights]), strict=True):
                p.data = part.view_as(p)
        super().step()


class Hooked(Heavy):
    hooked = False

    def step(self, closure: Any = None) -> None:
        if not self.hooked:
            self.weights[0].register_hook(torch.clone)
            self.hooked = True
        super().step()


class Compiled(Heavy):
    update: Callable[[], None] | None = None

    def step(self, closure: Any = None) -> None:
        if self.update is None:
            self.update = lambda: None
        super().step()


@pytest.mark.parametrize("kind", [Flat, Hooked, Compiled])
def test_where_something_cannot_travel_nothing_does_and_it_is_named(kind: Any, tmp_path: Path) -> None:
    held = held_by(kind)
    trained(held, range(3))
    assert StateTransfer(held).state({})["optimizers"][0]["attributes"] is None
    finished, _ = run_local(job("ring"), partial(train_by, kind), tmp_path)
    assert f"{kind.__name__}.momenta" in finished.reproducible_why


class SlowByData(torch.optim.SGD):
    """As Lookahead has its slow weights in a list, and moves them by `.data`, which counts in no version."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, lr=0.1)
        self.slow = [[p.detach().clone() for p in group["params"]] for group in self.param_groups]


def test_a_tensor_that_is_changed_by_data_travels() -> None:
    optimizer, own = SlowByData([torch.nn.Parameter(torch.ones(3))]), OwnAttributes(dict)
    own.add(optimizer)
    assert own.sent(optimizer) == {}
    optimizer.slow[0][0].data.add_(1.0)
    assert [*(own.sent(optimizer) or {})] == [("slow",)]


def keeps_its_bits(name: str, mode: str, end: Play) -> None:
    assert end.outcome == "succeeded", (end.reason, end.message)
    assert {finished.reproducible_why for finished in end.finished.values()} == {""}
    assert end.digest == alone(name, mode)


@pytest.mark.parametrize("happening", [killed, paused, restarted], ids=lambda each: each.__name__)
@pytest.mark.parametrize(("name", "mode"), [*product(OPTIMIZERS, MODES)])
def test_own_attributes_come_to_whoever_is_new(
    name: str, mode: str, happening: Callable[[str, str, Path], Play], tmp_path: Path
) -> None:
    keeps_its_bits(name, mode, happening(name, mode, tmp_path))


@pytest.mark.parametrize("happening", [killed_server, killed, paused], ids=lambda each: each.__name__)
@pytest.mark.parametrize(("name", "mode"), [*product(("Prodigious", "ScheduleFree"), MORE_MODES)])
def test_a_server_that_stands_in_for_another_has_its_attributes(
    name: str, mode: str, happening: Callable[[str, str, Path], Play], tmp_path: Path
) -> None:
    keeps_its_bits(name, mode, happening(name, mode, tmp_path))


class Uneven(Plain):
    """Replicas leave different things: as many tensors as gradients were large."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights)
        self.large: list[Tensor] = []
        self.label = "none"

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.weights:
            p.sub_(p.grad, alpha=0.1 / (1 + len(self.large)))
            if float(p.grad.abs().max()) > 0.15:
                self.large.append(p.grad.mean().repeat(2))
                self.label = f"of {len(self.large)}"
        for total in self.large[-2:]:
            self.weights[0].sub_(float(total.sum()) * 0.01 + len(self.label) * 1e-4)


class Lazy(Plain):
    """Replicas meet their first large gradients of other parameters, at other steps."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights)
        self.sums: dict[nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.weights:
            if p in self.sums or float(p.grad.abs().max()) > 0.4:
                total = self.sums.setdefault(p, torch.zeros_like(p)).mul_(0.9).add_(p.grad)
                p.sub_(total, alpha=0.1)


class Seldom(Plain):
    """A replica may leave one of its tensors as it was made."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights)
        self.always, self.large = torch.zeros(2), torch.zeros(2)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.weights:
            p.sub_(p.grad, alpha=0.05 + float(self.always[0]) + float(self.large[0]))
            self.always += p.grad.mean() * 0.1
            if float(p.grad.abs().max()) > 0.76:
                self.large += 0.01


OPTIMIZERS |= {kind.__name__: kind for kind in (Uneven, Lazy, Seldom)}  # of the tests below
ROUNDS = [*((killed, name) for name in OPTIMIZERS)]
ROUNDS += [*product((paused, restarted), ("LookaheadCounting", "ScheduleFree", "Once", "Returning"))]


@pytest.mark.parametrize(
    ("happening", "name"),
    ROUNDS,
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_rounds_make_one_of_what_replicas_leave(
    happening: Callable[[str, str, Path], Play], name: str, tmp_path: Path
) -> None:
    keeps_its_bits(name, "rounds", happening(name, "rounds", tmp_path))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["Once", "Returning", "Uneven", "Lazy", "Seldom"])
def test_each_replica_begins_with_the_attributes_of_the_round(name: str, world: int, tmp_path: Path) -> None:
    spec = job("rounds", world)
    keeps_its_bits(name, "rounds", ThreadedCast(spec, partial(train, name), NO_FAULTS, tmp_path).play())


class Signed(Optimizer):
    """As people write Lion: all that it keeps is in `state`."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("m", torch.zeros_like(p))
                    p.add_(momentum.lerp_(p.grad, 0.1).sign(), alpha=-group["lr"])


class BestYet:
    """Whose `state` is another one than the optimizer's."""

    def __init__(self) -> None:
        self.lowest, self.state = 1e9, {}  # type: ignore[var-annotated]

    def look(self, loss: float, net: nn.Module) -> None:
        if loss < self.lowest:
            self.lowest, self.state = loss, copy.deepcopy(net.state_dict())


def with_the_best_yet(session: Session) -> None:
    net, best = session.model(copy.deepcopy(NET)), BestYet()
    optimizer = session.optimizer(Signed(net.parameters()))
    for _ in range(3):
        for x, y in session.batches(DATA, shuffle=False):
            session.step(F.cross_entropy(net(x), y))
        with torch.no_grad():
            best.look(float(F.cross_entropy(net(DATA.tensors[0]), DATA.tensors[1])), net)
        for group in optimizer.param_groups:
            group["lr"] *= 0.8
    net.load_state_dict(best.state)


def test_an_optimizers_state_is_no_variable_of_the_program(tmp_path: Path) -> None:
    for attempt, faults in enumerate((FaultPlan().pause(at_step=5), NO_FAULTS), start=1):
        place, saved = tmp_path / str(attempt), str(tmp_path / "saved")
        cast = ThreadedCast(
            job("parts"), with_the_best_yet, faults, place, checkpoints=saved, attempt=attempt
        )
        end = cast.play()
    assert end.outcome == "succeeded", (end.reason, end.message)
    assert {finished.reproducible_why for finished in end.finished.values()} == {""}


class HeavyCounting(Heavy):
    """SGD with momentum, and a count of its steps."""

    steps = 0

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        super().step()


def test_momenta_in_a_list_are_averaged_as_those_in_the_state_are(tmp_path: Path) -> None:
    spec = JobSpec.parse(job("rounds").model_dump(mode="json", exclude_unset=True))
    ends: list[list[Tensor]] = []
    counts: list[int] = []

    def train(session: Session, make: Callable[..., Optimizer]) -> None:
        net = session.model(copy.deepcopy(NET))
        optimizer = session.optimizer(make(net.parameters()))
        for _ in range(2):
            for x, y in session.batches(DATA, shuffle=False):
                session.step(F.cross_entropy(net(x), y))
        ends.append([p.detach().clone() for p in net.parameters()])
        counts.append(getattr(optimizer, "steps", session.global_step))

    for make in (HeavyCounting, partial(torch.optim.SGD, lr=0.05, momentum=0.9)):
        run_local(spec, partial(train, make=make), tmp_path / str(len(ends)))
    assert counts == [8, 8], "a round's steps count once"
    for mine, torchs in zip(*ends, strict=True):
        # Their means are rounded once here, at each addition there.
        torch.testing.assert_close(mine, torchs, rtol=1e-5, atol=1e-6)


class Looking(Optimizer):
    """As libraries have it: it shares groups and state with the one that it wraps, and shows its rate."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.defaults = inner, inner.defaults
        super().__init__(inner.param_groups, inner.defaults)
        self.state = inner.state
        self.last_rate, self.shown, self.rates = 0.0, {"rate": 0.0}, [0.0]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.last_rate = self.shown["rate"] = self.param_groups[0]["lr"]
        self.rates.append(self.last_rate)
        for parameter in self.param_groups[0]["params"]:
            slow = self.state[parameter].setdefault("slow", parameter.clone())
            slow.lerp_(parameter, 0.5)


class Scaler:
    def __init__(self) -> None:
        self.scale, self.seen = 1.0, 0

    def grow(self) -> float:
        self.scale, self.seen = self.scale * 2, self.seen + 1
        return self.scale


class Scaling(Plain):
    """What it goes on from is in an object of the program's own."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights)
        self.scaler = Scaler()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.weights:
            p.sub_(p.grad, alpha=1 / self.scaler.grow())


class Grown:
    """Deletes what it began with."""

    scale = 8.0
    calls = count()

    def __init__(self) -> None:
        self.low = 4.0

    def grow(self) -> float:
        scale = getattr(self, "low", self.scale)
        if next(self.calls) == 10:
            del self.low
        return scale


class Growing(Scaling):
    def __init__(self, weights: Any) -> None:
        super().__init__(weights)
        self.scaler = Grown()  # type: ignore[assignment]


class CompiledOnce(Once):
    """Cannot travel."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights)
        self.update: Callable[[], None] | None = None

    def step(self, closure: Any = None) -> None:
        if self.update is None:
            self.update = lambda: None
        super().step()


class Forgetting(Compiled):
    """Cannot travel, and saves its momenta, not its count."""

    count = 0

    def step(self, closure: Any = None) -> None:
        self.count += 1
        for p in self.weights:
            p.grad = p.grad / self.count
        super().step()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"momenta": self.momenta}


def named_by(make: Callable[..., Optimizer], sync: Any) -> set[str]:
    spec = JobSpec.parse(job("ring").model_dump(mode="json", exclude_unset=True) | {"sync": sync})
    found: list[Any] = []
    held = held_by(make)
    rules = mode_of(spec.sync).rules(spec.sync)
    variables: Any = SimpleNamespace(find=found.append)
    watch = UnsavedAttributes(rules, held, variables, matters=spec.sync.same_bits)
    optimizer, _ = held.optimizers[0]
    watch.add(optimizer)
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(held.models[0](DATA.tensors[0]), DATA.tensors[1]).backward()
        with watch.watched(optimizer):
            optimizer.step()
    return {finding.variable for finding in found}


TORCHS = (
    "SGD",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "ASGD",
    "RMSprop",
    "Rprop",
)


@pytest.mark.parametrize("around", [lambda inner: inner, Looking], ids=["plain", "looking"])
@pytest.mark.parametrize("kind", [*(getattr(torch.optim, name) for name in TORCHS), LAMB, LARS])
def test_no_mode_names_what_torch_sets_and_what_is_only_shown(kind: Any, around: Any) -> None:
    for sync in ("ring", LOCAL, SERVERS | {"servers": 3}):
        assert named_by(lambda weights: around(kind(list(weights), lr=0.1)), sync) == set()


@pytest.mark.parametrize(
    ("kind", "sync", "named"),
    [
        (Scaling, "ring", {"Scaling.scaler"}),
        (Scaling, LOCAL, {"Scaling.scaler"}),
        (Heavy, LOCAL, set()),
        (Forgetting, "ring", {"Forgetting.count"}),
        (WarmedUp, SERVERS | {"servers": 2}, {"WarmedUp._step_count"}),
        (Heavy, SERVERS | {"servers": 2}, {"Heavy.momenta"}),
        (Heavy, SERVERS | {"servers": 2, "server_backups": 1}, set()),
        (Once, "ring", set()),
        (Once, LOCAL, set()),
        (Once, SERVERS | {"servers": 2}, {"Once.warm"}),
        (CompiledOnce, "ring", {"CompiledOnce.warm"}),
        (CompiledOnce, LOCAL, {"CompiledOnce.warm"}),
        (Growing, "ring", {"Growing.scaler"}),
    ],
)
def test_what_cannot_come_to_others_is_named(kind: Any, sync: Any, named: set[str]) -> None:
    assert named_by(kind, sync) == named
