"""Which places an attempt gives back when it shrinks, without Ray: groups are numbers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from rooms import SECRET

from ringleader.elastic import Meeting, Plan
from ringleader.elastic import events as ev
from ringleader.elastic.instructions import Role
from ringleader.runtime.messages import AttemptLaunch, ProcessIdentity
from ringleader.spec import JobSpec

if TYPE_CHECKING:
    from ringleader.runtime.supervisor.attempt import Attempt

HERE = Meeting("127.0.0.1:1", SECRET)


class Disk:
    """Takes everything, and keeps the events."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    @contextmanager
    def together(self) -> Iterator[None]:
        yield

    def note(self, name: str, value: bytes) -> None: ...
    def write(self) -> None: ...
    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        self.told.append((kind, data))

    recorded_step = 0


class FakeWorkerGroup:
    """Whoever is started holds a place at once; whoever is killed frees it, and is lost."""

    def __init__(self, places: Any) -> None:
        self.places = places
        self.started: list[str] = []
        self.killed: list[str] = []
        self.plans: list[Plan] = []
        self.pairs: list[Meeting] = []
        self.seats: dict[str, str] = {}

    def reserve(self, worker: str, role: Role) -> None:
        self.places.reserve(worker, role)

    def start(self, worker: str) -> None:
        self.started.append(worker)
        self.places.claim(worker, lambda: None)

    def knows(self, worker: str) -> bool:
        return worker not in self.killed

    def kill(self, worker: str) -> None:
        self.places.free(worker, for_good=False)
        self.killed.append(worker)

    def shrink(self, most: int) -> None:
        self.places.trim(most)

    def identity(self, worker: str) -> ProcessIdentity | None:
        return self.identities().get(worker)

    def glance(self, worker: str) -> None: ...
    def deliver(self, plan: Plan) -> None:
        self.plans.append(plan)

    def pair(self, worker: str, donor: str, number: int, meeting: Meeting) -> None:
        self.pairs.append(meeting)

    def identities(self) -> dict[str, ProcessIdentity]:
        return {worker: ProcessIdentity(1, node, f"address of {node}") for worker, node in self.seats.items()}

    def interrupt(self, worker: str, generation: int) -> None: ...
    def announce(self, worker: str, generation: int) -> None: ...


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Bundles by group."""
    from ringleader.runtime.supervisor import placement as module

    numbers, there = count(), dict[int, int]()

    def group(bundles: list[Any], **_: Any) -> Any:
        number = next(numbers)
        there[number] = len(bundles)
        number_in_hex = SimpleNamespace(hex=lambda: f"{number:02x}")
        return SimpleNamespace(number=number, id=number_in_hex, wait=lambda timeout_seconds: True)

    monkeypatch.setattr(module, "placement_group", group)
    monkeypatch.setattr(module, "remove_placement_group", lambda group: there.pop(group.number))
    monkeypatch.setattr(module, "remove_leftovers", lambda name, but: None)
    monkeypatch.setattr(module.BundlePlaces, "_seat", lambda _: None)
    return there


def attempt_of(
    folder: Path, *, workers_min: int, workers_max: int, clock: Callable[[], float] = monotonic
) -> tuple["Attempt", FakeWorkerGroup]:
    from ringleader.runtime.supervisor.attempt import Attempt
    from ringleader.runtime.supervisor.placement import BundlePlaces

    workers = {"min": workers_min, "max": workers_max}
    batch = {"global_size": 8, "logical_shards": 8}
    spec = JobSpec.parse({"name": "a", "entrypoint": "m:f", "workers": workers, "batch": batch})
    attempt = Attempt(AttemptLaunch("job", 1, spec, None, "", "", folder), lambda: HERE, clock=clock)
    worker_group = FakeWorkerGroup(BundlePlaces("job", spec.workers, servers=0))
    attempt._open(cast("Any", worker_group), cast("Any", Disk()))
    attempt._begin()
    return attempt, worker_group


def take(attempt: "Attempt", *events: ev.Event) -> None:
    for event in events:
        attempt._take(event)


def test_places_of_joiners_that_a_resize_ends_are_given_back(
    reserved: dict[int, int], tmp_path: Path
) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=4)
    before = dict(reserved)
    assert sum(before.values()) == 4
    take(attempt, *(ev.Parked(f"w{n}", 0.0, ev.ParkReport(0, 0, 0, "")) for n in range(4)))
    take(attempt, ev.Resize(2, 8, 1.0))
    assert sum(reserved.values()) == 8
    take(attempt, ev.Resize(2, 4, 2.0))
    assert sorted(worker_group.killed) == ["w4", "w5", "w6", "w7"]
    take(attempt, *(ev.Lost(worker, "died", 3.0) for worker in worker_group.killed))
    assert reserved == before


def test_the_place_of_a_member_that_dies_before_it_could_leave_is_given_back(
    reserved: dict[int, int], tmp_path: Path
) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=4)
    take(
        attempt,
        *(ev.Parked(f"w{n}", 0.0, ev.ParkReport(0, 0, 0, "")) for n in range(4)),
        ev.Resize(2, 3, 1.0),
    )
    assert sum(reserved.values()) == 4
    worker_group.places.free("w3", for_good=False)
    take(attempt, ev.Lost("w3", "died", 2.0))
    assert sum(reserved.values()) == 3


def test_a_place_that_a_replacement_will_take_is_kept(reserved: dict[int, int], tmp_path: Path) -> None:
    attempt, worker_group = attempt_of(tmp_path, workers_min=2, workers_max=4)
    before = dict(reserved)
    worker_group.places.free("w3", for_good=False)
    take(attempt, ev.Lost("w3", "died", 1.0))
    assert reserved == before
