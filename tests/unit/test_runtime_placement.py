"""Who is given which place of an attempt, without Ray."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ringleader.spec import Workers

if TYPE_CHECKING:
    from ringleader.runtime.supervisor.placement import BundlePlaces


@dataclass
class Cluster:
    """Placement groups by name: the nodes of their bundles, none where there is no room."""

    nodes: dict[str, list[str]]
    draining: Collection[str] = ()
    removed: list[str] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    bundles: dict[str, list[Any]] = field(default_factory=dict)
    late: Callable[[str], None] = lambda _: None

    def group(self, bundles: list[Any], *, strategy: str, name: str, lifetime: str) -> Any:
        def wait(timeout_seconds: float) -> bool:
            self.waited_s.append(timeout_seconds)
            if timeout_seconds:
                self.late(name)
            return bool(self.nodes.get(name))

        self.bundles[name] = bundles
        return SimpleNamespace(name=name, id=SimpleNamespace(hex=lambda: name), wait=wait)

    def table(self, group: Any = None) -> dict[str, Any]:
        if group is None:
            return {}
        nodes = self.nodes.get(group.name, [])
        state = "CREATED" if nodes else "PENDING"
        return {"state": state, "bundles_to_node_id": dict(enumerate(nodes))}

    def remove(self, group: Any) -> None:
        self.removed.append(group.name)


def gang_on(
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    *,
    servers: int = 0,
    each: Workers | None = None,
    each_server: Workers | None = None,
) -> "BundlePlaces":
    """Two workers have their places."""
    from ringleader.runtime.supervisor import placement

    monkeypatch.setattr(placement, "placement_group", cluster.group)
    monkeypatch.setattr(placement, "placement_group_table", cluster.table)
    monkeypatch.setattr(placement, "remove_placement_group", cluster.remove)
    places = placement.BundlePlaces(
        "a",
        each or Workers(min=2, max=3),
        servers=servers,
        each_server=each_server,
        draining=lambda: cluster.draining,
    )
    for worker in ("w0", "w1"):
        places.reserve(worker, "worker")
        assert places.claim(worker, pytest.fail) is not None
    return places


def test_a_newcomer_is_not_put_on_a_node_that_drains(monkeypatch: pytest.MonkeyPatch):
    cluster = Cluster({"a-floor": ["north", "south"], "a-surplus-w2": ["east"]})
    places = gang_on(cluster, monkeypatch)
    cluster.draining = {"north"}
    places.free("w0", for_good=True)
    places.reserve("w2", "worker")
    place = places.claim("w2", pytest.fail)
    assert place is not None
    assert (places.node(place), place.surplus) == ("east", True)
    places.free("w1", for_good=True)
    places.reserve("w3", "worker")
    found = places.claim("w3", pytest.fail)
    assert found is not None
    assert (places.node(found), found.surplus) == ("south", False)


def test_a_newcomer_takes_the_gangs_place_once_that_stays_and_there_is_no_other_room(
    monkeypatch: pytest.MonkeyPatch,
):
    cluster = Cluster({"a-floor": ["north", "south"]})
    places = gang_on(cluster, monkeypatch)
    cluster.draining = {"north"}
    places.free("w0", for_good=True)
    places.reserve("w2", "worker")

    def moved() -> None:
        cluster.draining, cluster.nodes["a-floor"] = (), ["west", "south"]

    place = places.claim("w2", moved)
    assert place is not None
    assert (places.node(place), place.surplus) == ("west", False)
    assert cluster.removed == ["a-surplus-w2"]


def test_a_server_that_is_not_put_on_a_node_that_drains_leaves_the_workers_their_places(
    monkeypatch: pytest.MonkeyPatch,
):
    cluster = Cluster({"a-floor": ["north", "south", "north"], "a-surplus-s3": ["east"]})
    places = gang_on(cluster, monkeypatch, servers=1)
    cluster.draining = {"north"}
    places.free("w1", for_good=True)
    places.reserve("s3", "server")
    place = places.claim("s3", pytest.fail)
    assert place is not None
    assert (places.node(place), place.role) == ("east", "server")


def test_servers_reserve_what_they_need_and_no_device_of_a_worker(monkeypatch: pytest.MonkeyPatch):
    """Four devices for four workers: servers beside them need none."""
    cluster = Cluster(
        {"a-floor": ["north", "south", "south", "north"], "a-surplus-w9": ["east"], "a-surplus-s8": ["east"]}
    )
    worker, server = {"CPU": 2.0, "GPU": 1.0}, {"CPU": 0.5, "memory": float(1 << 30)}
    places = gang_on(
        cluster,
        monkeypatch,
        servers=2,
        each=Workers(min=2, max=3, cpus=2, gpus=1),
        each_server=Workers(cpus=0.5, memory_gb=1),
    )
    assert cluster.bundles["a-floor"] == [worker, worker, server, server]
    for name, role in (("s0", "server"), ("s1", "server"), ("s8", "server"), ("w9", "worker")):
        places.reserve(name, role)
    found = {name: places.claim(name, pytest.fail) for name in ("s0", "s1", "s8", "w9")}
    assert [(p.bundle, p.role) for p in found.values() if p] == [
        (2, "server"),
        (3, "server"),
        (0, "server"),
        (0, "worker"),
    ]
    assert (cluster.bundles["a-surplus-s8"], cluster.bundles["a-surplus-w9"]) == ([server], [worker])


def test_whoever_waits_for_a_place_leaves_the_waiting_to_ray(monkeypatch: pytest.MonkeyPatch):
    """Which takes less than a second for none: it would be asked again at once, all the time."""
    cluster = Cluster({"a-floor": ["north", "south"]})
    places = gang_on(cluster, monkeypatch)
    cluster.waited_s.clear()
    cluster.late = lambda name: cluster.nodes.update({name: ["east"]}) if len(cluster.waited_s) == 4 else None
    told: list[None] = []
    assert places.claim("w2", lambda: told.append(None)) is not None
    assert cluster.waited_s == [0, 1, 1, 1]
    assert len(told) == 1


def test_a_place_that_is_given_back_while_somebody_waits_for_it_is_no_error(monkeypatch: pytest.MonkeyPatch):
    cluster = Cluster({"a-floor": ["north", "south"]})
    places = gang_on(cluster, monkeypatch)

    def given_back(name: str) -> None:
        places.free("w2", for_good=True)
        raise RuntimeError(f"Placement group {name} does not exist.")

    cluster.late = given_back
    assert places.claim("w2", lambda: None) is None
