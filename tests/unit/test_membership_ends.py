"""Attempts that are cancelled or paused, and those that end because nothing helps any more."""

from membership_world import World
from test_membership import running

from ringleader.elastic import events as ev
from ringleader.elastic.membership import handle
from ringleader.elastic.state import Membership


def test_a_cancelled_attempt_ends_at_the_next_boundary():
    world = running()
    world.tell(ev.Cancel(30.0, world.now))
    assert world.end is None
    world.commit()
    assert world.end.outcome == "cancelled"


def test_a_cancelled_attempt_ends_when_its_grace_is_over():
    world = running()
    world.tell(ev.Cancel(3.0, world.now))
    world.tick(3.1)
    assert world.end.outcome == "cancelled"


def test_a_cancelled_attempt_is_neither_paused_nor_preempted_when_that_time_is_over():
    world = running()
    world.tell(ev.Pause(5.0, world.now))
    world.tell(ev.Cancel(60.0, world.now))
    world.tick(6)
    assert world.end.outcome == "cancelled"
    world = running(workers_min=3)
    world.drain("w1", 5.0)
    world.tick(0.1)
    assert world.state.preempted
    world.tell(ev.Cancel(60.0, world.now))
    state, _ = handle(world.state, ev.Failed("", "platform_error", "nobody knows it any more", world.now))
    assert state.ended.outcome == "failed"


def test_a_paused_attempt_ends_once_its_members_have_saved_the_boundary():
    world = running()
    world.tell(ev.Pause(30.0, world.now))
    world.commit()
    assert (world.plan.cause, world.end) == ("pause", None)
    members, step = world.plan.members, world.plan.start_transaction
    world.commit()
    assert world.end.outcome == "paused"
    assert (world.plan.members, world.plan.start_transaction) == (members, step)


def test_a_member_lost_while_a_pause_is_saved_leaves_it_to_the_others():
    world = running()
    world.tell(ev.Pause(30.0, world.now))
    world.commit()
    world.die("w1")
    world.hear()
    world.sense("w0")
    world.sense("w2")
    assert (world.plan.cause, world.plan.members) == ("lost", ("w0", "w2"))
    world.commit()  # in which they hear of the pause
    world.commit()
    assert (world.plan.cause, world.plan.members, world.end) == ("pause", ("w0", "w2"), None)
    world.commit()
    assert world.end.outcome == "paused"


def test_a_pause_below_min_saves_what_is_left():
    world = World.of(workers_min=2, workers_max=2, shards=4)
    world.calm()
    world.die("w1")
    world.hear()
    world.sense("w0")
    assert world.state.short
    world.tell(ev.Pause(30.0, world.now))
    assert (world.plan.cause, world.plan.members) == ("lost", ("w0",))
    world.commit()
    world.commit()
    assert (world.plan.cause, world.plan.members) == ("pause", ("w0",))


def broken_off(state: Membership, now: float, why: str = "OSError: no route") -> Membership:
    """The exchange of the current plan breaks at its first member, and nobody is lost."""
    generation = state.generation
    for rank, member in enumerate(state.plan.members):
        state, _ = handle(
            state, ev.Parked(member, now, ev.ParkReport(generation, 2, 2, "it left" if rank else why))
        )
    return state


def test_exchanges_that_keep_breaking_though_nobody_is_lost_end_the_attempt_with_the_reason():
    world = running(workers_max=2)
    state = world.state
    for number in range(1, 10):
        assert not state.ended
        state = broken_off(state, world.now + 15.0 * number)
    assert (state.ended.outcome, state.ended.reason) == ("failed", "platform_error")
    assert "9 times in a row" in state.ended.message  # from the first to 120 s after it
    assert "OSError: no route; it left" in state.ended.message


def test_an_exchange_that_breaks_often_within_a_short_time_or_between_steps_is_made_again():
    world = running(workers_max=2)
    state, now = world.state, world.now
    for _ in range(20):
        state = broken_off(state, now := now + 1.0)
    state, _ = handle(state, ev.Committed("w0", state.generation, 3, now))
    for _ in range(4):
        state = broken_off(state, now := now + 1000.0)
    assert not state.ended


def test_a_pause_before_the_first_plan_has_nothing_to_save():
    world = World.of(workers_min=2, workers_max=2, shards=4)
    world.tell(ev.Pause(30.0, world.now))
    assert world.end.outcome == "paused"


def test_a_pause_ends_without_its_checkpoint_when_its_grace_is_over():
    world = running()
    world.tell(ev.Pause(3.0, world.now))
    world.tick(3.1)
    assert world.end.outcome == "paused"
