"""The queue of items under any history of workers, losses and replays: each item once, never too early."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringleader.train.modes.async_server.lease_queue import (
    AsyncPolicy,
    BackupWorkers,
    BoundedStaleness,
    LeasePolicy,
    LeaseQueue,
    LoopItems,
    PushVerdict,
)

WORKERS = 3
ACTS = st.lists(
    st.tuples(st.sampled_from(("lease", "push", "push", "lose", "generation")), st.integers(0, WORKERS - 1)),
    max_size=200,
)
DISCIPLINES: list[LeasePolicy] = [
    AsyncPolicy(),
    *(BoundedStaleness(staleness) for staleness in (0, 1, 3)),
    *(BackupWorkers(spare) for spare in (0, 1, 2)),
]


@st.composite
def loops(draw: st.DrawFn) -> LoopItems:
    """One to five batches of one to four shards; the last may lack some of them."""
    shards = draw(st.integers(1, 4))
    last = draw(st.sets(st.integers(0, shards - 1), min_size=1))
    return LoopItems(draw(st.integers(1, 5)), shards, tuple(sorted(last)))


class Play:
    """Workers that hold what they leased and push it, oldest first; an update is made as soon as it is due.

    Args:
        most: items that a worker has in hand.
    """

    def __init__(self, batches: LoopItems, discipline: LeasePolicy, most: int = 200) -> None:
        self.leases = LeaseQueue(batches, discipline)
        self.most = most
        self.leased: dict[int, list[tuple[int, int]]] = {worker: [] for worker in range(WORKERS)}
        self.pushed: list[tuple[int, int]] = []
        self.applied: list[int] = []
        self.refused_at: list[int] = []

    def act(self, what: str, worker: int) -> None:
        own = self.leased[worker]
        if what == "lease" and len(own) < self.most:
            lease = self.leases.lease(worker)
            if lease is not None:
                own.append((lease.item, lease.version))
        elif what == "push" and own:
            self.push(*own.pop(0))
        elif what == "lose":
            self.leases.give_back(worker)
            own.clear()
        elif what == "generation":
            self.leases.give_all_back()
            for other in self.leased.values():
                other.clear()
            for item, version in self.pushed:  # ghosts of the generations before
                assert self.leases.push(item, version) is not PushVerdict.TAKEN

    def push(self, item: int, version: int) -> None:
        verdict = self.leases.push(item, version)
        self.pushed.append((item, version))
        if verdict is PushVerdict.TAKEN:
            self.applied.append(item)
        if verdict is PushVerdict.REFUSED:
            self.refused_at.append(version)
        while self.leases.due:
            self.leases.advance()

    def finish(self, workers: Iterable[int] = range(WORKERS)) -> None:
        """Whoever is left leases and pushes to the end."""
        for _ in range(10 * self.leases.batches.total + 10):
            for worker in workers:
                self.act("push", worker)
                self.act("lease", worker)


@pytest.mark.parametrize("discipline", DISCIPLINES, ids=repr)
@given(batches=loops(), acts=ACTS)
def test_every_item_is_applied_once_whatever_happens(discipline, batches, acts) -> None:
    play = Play(batches, discipline)
    for what, worker in acts:
        play.act(what, worker)
    play.finish()
    assert play.leases.exhausted
    items = [offset * batches.shards + k for offset in range(batches.steps) for k in batches.present(offset)]
    assert sorted(play.applied) == items
    assert len(items) == batches.total
    assert play.leases.lease(0) is None
    updates = batches.total if isinstance(discipline, AsyncPolicy) else batches.steps
    assert play.leases.version == updates


@pytest.mark.parametrize("staleness", [0, 1, 3])
@given(batches=loops(), acts=ACTS)
def test_ssp_leases_no_item_beyond_its_bound(staleness, batches, acts) -> None:
    play = Play(batches, BoundedStaleness(staleness))
    seen = play.leases.lease
    clocks: list[tuple[int, int]] = []

    def noted(worker: int):
        lease = seen(worker)
        if lease is not None:
            clocks.append((lease.clock, lease.version))
        return lease

    play.leases.lease = noted  # type: ignore[method-assign]
    for what, worker in acts:
        play.act(what, worker)
    play.finish()
    assert all(clock - staleness <= version <= clock for clock, version in clocks)


@pytest.mark.parametrize(("spare", "most"), [(0, 1), (1, 1), (1, 2), (2, 2)])
@given(batches=loops(), acts=ACTS)
def test_backup_workers_waste_at_most_what_they_have_in_hand_an_update(spare, most, batches, acts) -> None:
    play = Play(batches, BackupWorkers(spare), most)
    for what, worker in acts:
        play.act(what, worker)
    play.finish()
    for version in range(batches.steps):
        assert play.refused_at.count(version) <= spare * most


@pytest.mark.parametrize(("spare", "most"), [(1, 1), (1, 2), (2, 2)])
@given(batches=loops(), acts=ACTS)
def test_no_update_waits_for_as_many_workers_as_are_spare(spare, most, batches, acts) -> None:
    """They stand still with whatever they have in hand. The others go on as long as there is an item that nobody has;
    what the slow ones have of an update that was made without them, others have by now."""
    play = Play(batches, BackupWorkers(spare), most)
    for what, worker in acts:
        play.act(what, worker)
    slow = range(spare)
    for worker in [*slow] * most:
        play.act("lease", worker)
    play.finish(range(spare, WORKERS))
    leases = play.leases
    assert leases.exhausted or leases.next is None
    assert {lease.worker for lease in leases.out.values()} <= set(slow)
    assert {lease.version for lease in leases.out.values()} <= {leases.version}
    for worker in slow:
        while play.leased[worker]:
            play.act("push", worker)
    play.finish()
    assert leases.exhausted


def test_an_update_is_made_of_those_that_come_first_without_the_straggler() -> None:
    """Three workers, one spare, four items a batch. The straggler has one push on its way and the next item in hand."""
    leases = LeaseQueue(LoopItems(3, 4, (0, 1, 2, 3)), BackupWorkers(1))
    late = [leases.lease(0), leases.lease(0)]
    for _ in range(2):
        quick = [leases.lease(1), leases.lease(2)]
        for lease in quick:
            assert lease is not None
            assert leases.push(lease.item, lease.version) is PushVerdict.TAKEN
    assert leases.due
    leases.advance()
    assert (leases.version, leases.taken.encode().tolist()) == (1, [0, 2, 3, 4, 5])
    again = [leases.lease(1), leases.lease(2)]
    assert [lease.item for lease in again if lease] == [0, 1]
    for lease in late:
        assert lease is not None
        assert leases.push(lease.item, lease.version) is PushVerdict.REFUSED
    assert [leases.push(lease.item, lease.version) for lease in again if lease] == [PushVerdict.TAKEN] * 2


@given(batches=loops())
def test_alone_items_come_in_ascending_order(batches) -> None:
    for discipline in DISCIPLINES:
        leases = LeaseQueue(batches, discipline)
        order = []
        while (lease := leases.lease(0)) is not None:
            order.append(lease.item)
            assert leases.push(lease.item, lease.version) is PushVerdict.TAKEN
            while leases.due:
                leases.advance()
        assert order == sorted(order)
        assert len(order) == batches.total


def test_what_comes_back_goes_to_the_front() -> None:
    leases = LeaseQueue(LoopItems(2, 3, (0, 1, 2)), AsyncPolicy())
    for worker in (0, 1, 0, 1):
        leases.lease(worker)
    leases.give_back(0)
    again = [leases.lease(1) for _ in range(3)]
    assert [lease.item for lease in again if lease] == [0, 2, 4]


@given(batches=loops())
def test_a_step_is_complete_with_as_many_items_as_its_batch_has(batches) -> None:
    counts = [batches.count(offset) for offset in range(batches.steps)]
    for items in range(batches.total + 1):
        complete = batches.steps_within(items)
        assert sum(counts[:complete]) <= items
        assert complete == batches.steps or items < sum(counts[: complete + 1])
