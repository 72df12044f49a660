"""Places for members: a gang of bundles reserved at once, and one bundle more for each worker above `min`."""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ringleader.elastic.instructions import Role
from ringleader.runtime.supervisor.bundle_order import seat
from ringleader.spec.workers import LEAST_CPUS, Workers

LOOK_S = 1
"""The wait for a place. Ray waits for whole seconds and takes less for none; asking again at once would keep its
control store and a core busy for as long as there is no room."""
_WORKER: Role = "worker"
_SERVER: Role = "server"


@dataclass(frozen=True, slots=True)
class ReservedPlaces:
    """The places of an attempt as they are written down: (group id, role, bundle, surplus, holder) each."""

    seated: bool
    places: tuple[tuple[str, Role, int, bool, str | None], ...]


@dataclass(slots=True)
class BundlePlace:
    """A bundle on a node, held by one member at a time. `bundle` is final once its gang has nodes."""

    group: Any
    role: Role
    bundle: int
    surplus: bool
    holder: str | None = None

    def give(self, worker: str) -> None:
        self.holder = worker

    def vacate(self) -> None:
        self.holder = None

    def move_to(self, bundle: int) -> None:
        self.bundle = bundle


class BundlePlaces:
    """The bundles of one attempt. They outlive the process that made them: whoever ends the attempt gives them back.

    Args:
        each_server: what a server needs; None: as much as a worker.
        keep: writes down what is reserved; called before anything follows from it.
        kept: the places that the supervisor before this one wrote down; all others are given back.
        draining: the nodes that are known to go away, where nobody is put.
    """

    def __init__(
        self,
        name: str,
        workers: Workers,
        *,
        servers: int,
        each_server: Workers | None = None,
        keep: Callable[[ReservedPlaces], None] = lambda _: None,
        kept: ReservedPlaces | None = None,
        draining: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._name = name
        self._draining = draining
        self._roles: dict[str, Role] = {}
        self._bundles: dict[Role, dict[str, float]] = {
            _WORKER: _bundle(workers),
            _SERVER: _bundle(each_server or workers),
        }
        self._strategy = workers.placement.upper()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keep = keep
        self._workers = workers.min
        known = [row[0] for row in kept.places] if kept is not None else []
        # Reserved after the last note: whoever made them was killed before it could write them down.
        remove_leftovers(name, but=known)
        if kept is not None:
            self._seated = kept.seated
            self._places = [
                BundlePlace(_found(group), role, bundle, surplus, holder)
                for group, role, bundle, surplus, holder in kept.places
            ]
            return
        self._seated = False
        roles = [_WORKER] * workers.min + [_SERVER] * servers
        gang = self._group(roles, "floor")
        self._places = [BundlePlace(gang, role, index, surplus=False) for index, role in enumerate(roles)]
        self._write()

    def reserve(self, worker: str, role: Role) -> None:
        """Give `worker` the first free place that stays, if there is one; called in the order of ranks."""
        with self._lock:
            self._roles[worker] = role
            mine = any(p.holder == worker for p in self._places)
            place = self._vacant(role)
            if place is not None and not mine:
                place.give(worker)
                self._write()

    def claim(self, worker: str, waiting: Callable[[], None]) -> BundlePlace | None:
        """The place of `worker`, its own or one more; blocks until there is one, calling `waiting` if that takes long.
        None when closed or given up meanwhile (`free`)."""
        with self._lock:
            place = next((p for p in self._places if p.holder == worker), None)
            if place is None:
                role = self._roles.get(worker, _WORKER)
                group = self._group([role], f"surplus-{worker}")
                place = BundlePlace(group, role, 0, surplus=True, holder=worker)
                self._places.append(place)
                self._write()
        told = False
        while not self._ready(worker, place, LOOK_S if told else 0):
            if self._closed.is_set() or place.holder != worker:
                return None
            if not told:
                told = True
                waiting()
            place = self._instead(worker, place)
        # Only a gang that is placed has nodes by which its bundles can be ordered.
        if not place.surplus:
            self._seat()
        return place if place.holder == worker else None

    def _ready(self, worker: str, place: BundlePlace, within_s: int) -> bool:
        try:
            return bool(place.group.wait(timeout_seconds=within_s))
        except Exception:
            if self._closed.is_set() or place.holder != worker:  # it has been given back meanwhile
                return False
            raise

    def node(self, place: BundlePlace) -> str:
        """The node of a claimed place."""
        return str(placement_group_table(place.group)["bundles_to_node_id"][place.bundle])

    def free(self, worker: str, *, for_good: bool) -> None:
        """Free the place of `worker`; `for_good` gives a surplus one back to the cluster."""
        with self._lock:
            place = next((p for p in self._places if p.holder == worker), None)
            if place is None:
                return
            place.vacate()
            if for_good and place.surplus:
                self._places.remove(place)
            self._write()
            if not (for_good and place.surplus):
                return
        # Outside of the lock: Ray's control store may be away, and everybody else waits for the lock.
        remove_placement_group(place.group)

    def trim(self, workers_max: int) -> None:
        """Give back surplus places of workers that nobody holds, as long as workers have more than `workers_max`
        places."""
        with self._lock:
            workers = [p for p in self._places if p.role == _WORKER]
            vacant = [p for p in workers if p.surplus and p.holder is None]
            extra = vacant[: max(0, len(workers) - workers_max)]
            if not extra:
                return
            self._places = [p for p in self._places if p not in extra]
            # Before they are removed: a supervisor that comes back must not wait for a group that is gone.
            self._write()
        for place in extra:
            remove_placement_group(place.group)

    def close(self) -> None:
        """Give all places back."""
        self._closed.set()
        with self._lock:
            # By id: the places of the gang share one group.
            groups = {p.group.id: p.group for p in self._places}
            self._places = []
        for group in groups.values():
            remove_placement_group(group)

    def _instead(self, worker: str, place: BundlePlace) -> BundlePlace:
        """A place for `worker` while Ray has no room for its surplus one: one of the gang that has become free, or has
        moved to a node that stays; `place` itself without one."""
        with self._lock:
            other = self._vacant(place.role) if place.surplus and place.holder == worker else None
            # A gang that lost its node is being placed anew: its bundle is on no node for now.
            if other is None or placement_group_table(other.group).get("state") != "CREATED":
                return place
            other.give(worker)
            self._places.remove(place)
            self._write()
        remove_placement_group(place.group)
        return other

    def _vacant(self, role: Role) -> BundlePlace | None:
        """The first free place on a node that stays."""
        draining = self._draining()
        free = (p for p in self._places if p.holder is None and p.role == role)
        # Without draining nodes no node is looked up: that asks Ray's control store.
        return next((p for p in free if not draining or self._on(p) not in draining), None)

    def _on(self, place: BundlePlace) -> str:
        """The node of a place, empty where it is not known yet."""
        if not (self._seated or place.surplus):
            return ""
        with suppress(Exception):  # Ray's control store is away: who is put there may have to leave again
            return self.node(place)
        return ""

    def _seat(self) -> None:
        """Assign the gang's bundles to its places, once, now that it has nodes."""
        with self._lock:
            gang = [p for p in self._places if not p.surplus]
            if self._seated or not gang:
                return
            on = placement_group_table(gang[0].group)["bundles_to_node_id"]
            alike = self._bundles[_WORKER] == self._bundles[_SERVER]
            bundles = seat([str(on[b]) for b in range(len(gang))], self._workers, alike=alike)
            for place, bundle in zip(gang, bundles, strict=True):
                place.move_to(bundle)
            self._seated = True
            self._write()

    def _write(self) -> None:
        rows = tuple((p.group.id.hex(), p.role, p.bundle, p.surplus, p.holder) for p in self._places)
        self._keep(ReservedPlaces(self._seated, rows))

    def _group(self, roles: Sequence[Role], part: str) -> Any:
        # Detached: else Ray removes it with the process that made it, and this one may come back.
        name, bundles = f"{self._name}-{part}", [self._bundles[role] for role in roles]
        return placement_group(bundles, strategy=self._strategy, name=name, lifetime="detached")


def _bundle(workers: Workers) -> dict[str, float]:
    bundle: dict[str, float] = {"CPU": max(workers.cpus, LEAST_CPUS)}
    if workers.gpus:
        bundle["GPU"] = float(workers.gpus)
    if workers.memory_gb:
        bundle["memory"] = workers.memory_gb * (1 << 30)
    return bundle


def here(*, soft: bool) -> NodeAffinitySchedulingStrategy:
    """The strategy for an actor on the node of this process; `soft`: elsewhere once that is gone."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=soft)


def leftovers(name: str) -> list[str]:
    """Ids of placement groups of the attempt called `name` that still exist."""
    table = placement_group_table()
    # The dash ends the number: attempt 1 must not give back the places of attempt 10.
    return [i for i, g in table.items() if g["name"].startswith(f"{name}-") and g["state"] != "REMOVED"]


def remove_leftovers(name: str, *, but: Collection[str] = ()) -> None:
    """Remove placement groups of an attempt whose supervisor could not."""
    for found in leftovers(name):
        if found not in but:
            remove_placement_group(_found(found))


def _found(group: str) -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))
