"""Faults into who joins and who gives the state: the right process is killed, at the right moment, and never the last
one that holds the state."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from membership_world import World
from test_membership import running

from ringleader.elastic import Membership
from ringleader.runtime.messages import ProcessIdentity
from ringleader.runtime.supervisor.fault_injection import FaultOutcome, strike


@dataclass
class FakeWorkerGroup:
    """Whom it befalls dies in the world."""

    world: World
    struck: list[tuple[str, str]] = field(default_factory=list)

    def knows(self, worker: str) -> bool:
        return worker in self.world.processes

    def identity(self, worker: str) -> ProcessIdentity:
        return ProcessIdentity(100 + int(worker[1:]), "node", "127.0.0.1")

    def befall(self, worker: str, _: Callable[..., None], *signs: Any) -> None:
        found = self.world.state.find(worker)
        assert found is not None
        self.struck.append((worker, str(found.phase)))
        self.world.die(worker)


def order(world: World, fault: str, victim: str) -> tuple[FaultOutcome, list[tuple[str, str]]]:
    worker_group = FakeWorkerGroup(world)

    def look() -> Membership:
        if worker_group.struck:
            for worker in world.alive():
                world.boot(worker)
                world.sense(worker)
            world.hear()
            world.commit()
            world.tick(0.1)
        return world.state

    said = strike(fault, victim, 1.0, look=look, worker_group=worker_group, post=world.tell)  # type: ignore[arg-type]
    return said, worker_group.struck


def test_who_comes_in_the_place_of_a_killed_worker_is_killed_while_it_follows_a_member() -> None:
    world = running(joiners_follow=True)
    said, struck = order(world, "joiner", "w1")
    assert struck == [("w1", "active"), ("w3", "shadowing")]
    assert said == FaultOutcome(
        True, "SIGKILL to process 101, rank 1, and to w3, process 103, its replacement"
    )
    world.calm()
    assert world.whole()


def test_who_comes_is_killed_while_it_is_healed_where_nobody_is_followed() -> None:
    _, struck = order(running(), "joiner", "w2")
    assert struck == [("w2", "active"), ("w3", "active")]


def test_the_worker_that_who_comes_follows_is_killed_while_another_one_holds_the_state() -> None:
    world = running(joiners_follow=True)
    said, struck = order(world, "donor", "w2")
    assert [phase for _, phase in struck] == ["active", "active"]
    assert struck[1][0] == world.processes["w3"].donor != "w2"
    assert said.said.endswith("which was sending its state to w3")
    world.calm()
    assert world.whole()


def test_nobody_is_killed_who_would_take_the_state_along() -> None:
    said, struck = order(running(workers_max=2), "donor", "w1")
    assert (said.done, struck) == (False, [])


def test_members_that_have_committed_nothing_yet_are_not_taken_for_who_comes() -> None:
    world = World.of(workers_min=1, workers_max=3, shards=6, joiners_follow=True)
    for worker in ("w0", "w1", "w2"):
        world.boot(worker)
    assert world.whole()
    _, struck = order(world, "joiner", "w1")
    assert struck[0][0] == "w1"
    assert struck[1][0] == "w3"
