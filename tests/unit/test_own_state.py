"""State of programs beside the usual one: own generators, scores that draw, wide optimizer states, set buffers."""

import random
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from faults import FaultPlan
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from ringleader.checkpoint.pieces import put_together, take_apart
from ringleader.comm.seal import WITHIN
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.rows.random_streams import own_generators, resumed_behind, seed_own
from ringleader.train.state.state_transfer import StateTransfer
from ringleader.train.state.training_state import TrainingState

ROWS, BATCH, EPOCHS = 70, 32, 4
STEPS = EPOCHS * 3
DRAWS: dict[str, tuple[Callable[[], Any], Callable[[Any], float]]] = {
    "numpy": (lambda: np.random.default_rng(0), lambda own: float(own.normal())),
    "numpy-legacy": (lambda: np.random.RandomState(0), lambda own: float(own.normal())),
    "python": (lambda: random.Random(0), lambda own: float(own.gauss(0, 1))),
    "torch": (lambda: torch.Generator().manual_seed(0), lambda own: float(torch.randn((), generator=own))),
}


def spec(workers: tuple[int, int] = (1, 1), **keys: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "own",
            "entrypoint": "m:f",
            "workers": {"min": workers[0], "max": workers[1]},
            "batch": {"global_size": BATCH, "logical_shards": 4},
            **keys,
        }
    )


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self, kind: str) -> None:
        make, self._draw = DRAWS[kind]
        self.own = make()

    def __call__(self, x: Tensor) -> Tensor:
        return x + 0.1 * self._draw(self.own)


class Jittered(Dataset[Any]):
    def __init__(self, kind: str) -> None:
        self._rows, self._transforms = rows(), [Jitter(kind)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        x, y = self._rows[row]
        return self._transforms[0](x), y


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn(x.shape, generator=self.own) if self.training else x


class Warmed(nn.Module):
    """What it gives depends on how many steps its buffer was told of."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 0.1 * self.steps)


def network(*first: nn.Module) -> nn.Sequential:
    net = nn.Sequential(*first, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    generator = torch.Generator().manual_seed(1)  # threads share the default one
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return net


def train(session: Session, make: Callable[[], Any] = rows, noise: bool = False) -> None:
    net = session.model(network(*([Noise()] if noise else [])))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    data = make()
    for _ in range(EPOCHS):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))


def train_warmed(session: Session) -> None:
    warmed = Warmed()
    net = session.model(network(warmed))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    session.on_commit(lambda: warmed.steps.add_(1))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
    assert warmed.steps == session.global_step


@pytest.mark.parametrize("kind", [*DRAWS, "in the network"])
def test_generators_that_a_program_keeps_of_its_own_cost_no_bit_when_a_worker_is_killed(
    kind: str, tmp_path: Path
) -> None:
    function = partial(train, make=partial(Jittered, kind)) if kind in DRAWS else partial(train, noise=True)
    alone = run_local(spec(), function, tmp_path / "alone")[0]
    play = ThreadedCast(spec((1, 3)), function, FaultPlan().kill("w1", at_step=4), tmp_path / "cast").play()
    assert play.outcome == "succeeded", play.message
    assert play.digest == alone.digest


class Resampled(Jittered):
    """Rows that lines between loops draw anew, from the generator that reading them draws from too."""

    def resample(self) -> float:
        jitter = self._transforms[0]
        self._rows = TensorDataset(
            self._rows.tensors[0] + 0.1 * jitter._draw(jitter.own), self._rows.tensors[1]
        )
        return jitter._draw(jitter.own)


@pytest.mark.parametrize("sync", ["ring", "parameter_server"])
@pytest.mark.parametrize("kind", DRAWS)
def test_lines_between_calls_draw_the_same_from_generators_that_slices_draw_from(
    kind: str, sync: str, tmp_path: Path
) -> None:
    """In a data set, in a module, and behind an evaluation."""

    def function(session: Session) -> None:
        noise, data = Noise(), Resampled(kind)
        net = session.model(network(noise))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        for _ in range(EPOCHS):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))
            drawn = data.resample() + float(torch.randn((), generator=noise.own))
            session.evaluate(data, lambda batch: {"loss": net(batch[0])[:, 0]})
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + abs(drawn + data.resample()))

    alone = run_local(spec(sync=sync), function, tmp_path / "alone")[0]
    lost = "w1" if sync == "ring" else "w2"
    faults = FaultPlan().kill(lost, at_step=4)
    play = ThreadedCast(spec((1, 3), sync=sync), function, faults, tmp_path / "cast").play()
    assert play.outcome == "succeeded", play.message
    assert {end.reproducible_why for end in play.finished.values()} == {""}
    assert play.digest == alone.digest


def test_own_generators_go_on_from_where_they_stood() -> None:
    for make, draw in DRAWS.values():
        own, other = make(), make()
        first = [draw(own), draw(other)]
        with resumed_behind([("own", own), ("system", random.SystemRandom())]):
            seed_own([("own", own)], 0, "step", 3)
            assert draw(own) != first[0]
        assert draw(own) == draw(other)


OURS = random.Random(5)


def shaken(x: float) -> float:
    return x * OURS.uniform(0.9, 1.1)


def by(x: float, own: random.Random = OURS) -> float:
    return x * own.uniform(0.9, 1.1)


def around(own: random.Random) -> Callable[[float], float]:
    return lambda x: x * own.uniform(0.9, 1.1)


class Shaking:
    """Draws from a generator of its class."""

    own = OURS

    def __call__(self, x: float) -> float:
        return x * self.own.uniform(0.9, 1.1)


class ShakingByName:
    def __call__(self, x: float) -> float:
        return shaken(x)


class Slotted:
    __slots__ = ("own",)

    def __init__(self) -> None:
        self.own = OURS


HELD: dict[str, Any] = {
    "in a partial": partial(by, own=OURS),
    "in a list of partials": [partial(by, 1.0, OURS)],
    "in a deque": deque([Jitter("python")]),
    "in the object of a method": SimpleNamespace(own=OURS, transform=Shaking().__call__).transform,
    "in a closure": around(OURS),
    "as a default": by,
    "as a global of a function": shaken,
    "as a global that a method's function names": ShakingByName(),
    "in a class": Shaking(),
    "in a slot": Slotted(),
}


@pytest.mark.parametrize("holder", HELD)
def test_a_generator_is_found_wherever_a_transform_holds_it(holder: str) -> None:
    found = [own for _, own in own_generators(SimpleNamespace(transform=HELD[holder]))]
    assert len(found) == 1
    assert isinstance(found[0], random.Random)


def test_global_generators_are_nobodys_own() -> None:
    def drawn(own: torch.Generator = torch.default_generator) -> Tensor:
        return torch.rand(1, generator=own)

    assert list(own_generators(SimpleNamespace(transform=drawn))) == []


def test_a_body_that_draws_from_its_data_set_s_generator_keeps_its_bits_with_loading_processes(
    tmp_path: Path,
) -> None:
    def function(session: Session, loaders: int) -> None:
        data = Jittered("python")
        net = session.model(nn.Linear(6, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(data, loader_workers=loaders):
            session.step(F.cross_entropy(net(x * data._transforms[0].own.uniform(0.9, 1.1)), y))

    ends = [run_local(spec(), partial(function, loaders=count), tmp_path)[0] for count in (0, 1)]
    assert ends[0].digest == ends[1].digest


def test_own_generators_differ_from_each_other_and_from_slice_to_slice() -> None:
    first, second = torch.Generator(), torch.Generator()
    owner = {"first": first, "again": [first], "second": second}
    assert [path for path, _ in own_generators(owner)] == [".first", ".second"]
    drawn = []
    for step in (0, 1, 0):
        seed_own(own_generators(owner), 0, "step", step, 3)
        drawn.append([int(torch.randint(1 << 30, (), generator=own)) for own in (first, second)])
    assert drawn[0] == drawn[2]
    assert len({*drawn[0], *drawn[1]}) == 4


def test_a_search_for_own_generators_looks_at_few_of_many_objects() -> None:
    """Each slice begins with one, also where the collate function holds all that a library knows."""
    many = [{name: SimpleNamespace(n=name) for name in range(100)} for _ in range(100)]
    owner = SimpleNamespace(known=many, own=torch.Generator())
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    list(own_generators(owner))  # what is known of each class is found out once
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = list(own_generators(owner))
    finally:
        sys.setprofile(before)
    assert found == [(".own", owner.own)]
    assert calls < 5_000  # 42,000 where each of those 10,000 is looked at


def test_scores_that_draw_do_not_depend_on_who_loads(tmp_path: Path) -> None:
    def scores(loaders: int) -> dict[str, float]:
        def function(session: Session) -> None:
            train(session)
            session.evaluate(
                rows(), lambda batch: {"drawn": torch.rand(len(batch[0]))}, loader_workers=loaders
            )

        return run_local(spec(), function, tmp_path)[0].scores

    assert scores(0) == scores(1)


def test_an_optimizer_state_of_another_type_than_its_weight_is_healed_bit_for_bit() -> None:
    def held() -> tuple[TrainingState, nn.Parameter, torch.optim.Optimizer]:
        net = nn.Linear(3, 1, bias=False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        made = TrainingState()
        made.models.append(net)
        made.optimizers.append((optimizer, None))
        return made, net.weight, optimizer

    donor, weight, optimizer = held()
    sums = torch.tensor([[1 / 3, 2 / 3, 1e-9]], dtype=torch.float64)
    optimizer.state[weight] = {"sum": sums}
    receiver, own, healed = held()
    StateTransfer(receiver).restore(StateTransfer(donor).payload({}, WITHIN), WITHIN)
    assert torch.equal(healed.state[own]["sum"], sums)
    assert healed.state[own]["sum"].dtype == torch.float64


class Pictures(nn.Sequential):
    """Its first weights may lie in memory in another order than their indices."""

    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2))
        generator = torch.Generator().manual_seed(1)  # threads share the default one
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)
        self.to(memory_format=memory_format)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.cat([x, -x], dim=1).view(-1, 3, 2, 2))  # type: ignore[no-any-return]


def train_fused(
    session: Session, ends: list[Tensor], memory_format: torch.memory_format = torch.channels_last
) -> None:
    net = session.model(Pictures(memory_format))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True))
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
    ends.append(net[0].weight.detach())


def test_who_follows_updates_weights_of_any_memory_format_as_members_do(tmp_path: Path) -> None:
    function = partial(train_fused, ends=[])
    alone = run_local(spec(), function, tmp_path / "alone")[0]
    faults = FaultPlan().kill("w1", at_step=3)
    for worker in ("w0", "w2"):
        faults = faults.dawdle(worker, from_step=3, for_generation=3)
    play = ThreadedCast(spec((2, 3)), function, faults, tmp_path / "cast", joiners_follow=True).play()
    assert play.outcome == "succeeded", play.message
    assert play.digest == alone.digest
    assert play.reported("worker.astray") == []


def test_averaged_states_lie_in_the_order_of_their_weights(tmp_path: Path) -> None:
    ends: list[Tensor] = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        function = partial(train_fused, ends=ends, memory_format=memory_format)
        run_local(spec(sync="local_sgd"), function, tmp_path)
    # Another memory format is another order of sums: some units in the last place of float32.
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_a_state_that_came_through_flat_memory_lies_in_the_order_of_its_weight() -> None:
    net = Pictures(torch.channels_last)
    weight = net[0].weight
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    made = TrainingState()
    made.models.append(net)
    made.optimizers.append((optimizer, None))
    sums = torch.arange(48.0).view(4, 3, 2, 2)
    optimizer.state[weight] = {"momentum_buffer": sums.to(memory_format=torch.channels_last)}
    skeleton, tensors = take_apart(StateTransfer(made).state({}))
    StateTransfer(made).take(put_together(skeleton, [tensor.contiguous() for tensor in tensors]))
    taken = optimizer.state[weight]["momentum_buffer"]
    assert torch.equal(taken, sums)
    assert taken.stride() == weight.stride()


def test_a_server_that_keeps_its_part_keeps_its_optimizer_state_of_it() -> None:
    """The peer, a backup of the part, has another state of it."""

    def made(number: float) -> TrainingState:
        held, net = TrainingState(), nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for parameter in net.parameters():
            parameter.data.fill_(number)
            optimizer.state[parameter] = {"momentum_buffer": torch.full_like(parameter, number)}
        held.models.append(net)
        held.optimizers.append((optimizer, None))
        return held

    mine, theirs = made(1.0), made(2.0)
    part = mine.parameters[:1]
    StateTransfer(mine).restore(StateTransfer(theirs).payload({}, WITHIN), WITHIN, part)
    (optimizer, _), (weight, bias) = mine.optimizers[0], mine.parameters
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.ones(2, 2))
    assert torch.equal(weight, torch.ones(2, 2))
    assert torch.equal(bias, torch.full((2,), 2.0))


@pytest.mark.parametrize("sync", ["ring", "parameter_server", "local_sgd"])
def test_what_callbacks_set_in_buffers_is_committed_with_the_step(sync: str, tmp_path: Path) -> None:
    alone = run_local(spec(sync=sync), train_warmed, tmp_path / "alone")[0]
    faults = FaultPlan().kill("w0", at_step=4)
    play = ThreadedCast(spec((1, 3), sync=sync), train_warmed, faults, tmp_path / "cast").play()
    assert play.outcome == "succeeded", play.message
    assert play.digest == alone.digest


def test_who_follows_sets_in_buffers_what_members_set(tmp_path: Path) -> None:
    alone = run_local(spec(), train_warmed, tmp_path / "alone")[0]
    faults = FaultPlan().kill("w1", at_step=3)
    for worker in ("w0", "w2"):
        faults = faults.dawdle(worker, from_step=3, for_generation=3)
    play = ThreadedCast(spec((2, 3)), train_warmed, faults, tmp_path / "cast", joiners_follow=True).play()
    assert play.outcome == "succeeded", play.message
    assert play.digest == alone.digest
    assert play.reported("worker.astray") == []
