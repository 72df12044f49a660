"""Who never committed a step: its end costs the others nothing, and the next ones come after a pause that grows."""

from itertools import pairwise

import pytest
from membership_world import World

from ringleader.elastic import events as ev
from ringleader.elastic.instructions import Kill
from ringleader.elastic.membership import handle
from ringleader.elastic.state import Phase


def growing(*, workers_min: int = 2, to: int = 8, **servers: int) -> World:
    """Two members are at work; the job has been told to grow."""
    world = World.of(workers_min=workers_min, workers_max=2, shards=8, **servers)
    world.calm()
    world.commit()
    world.tell(ev.Resize(workers_min, to, world.now))
    return world


def newcomers(world: World) -> list[str]:
    return [w.id for w in world.state.workers if w.phase is Phase.STARTING]


def lost(world: World) -> list[dict[str, object]]:
    return [r.data for r in world.reports if r.type == "worker.lost"]


def test_joiners_that_die_with_their_node_cost_no_failure_and_are_told_at_once():
    world = growing()
    for worker in newcomers(world):
        world.die(worker)
        world.hear()
    assert (world.end, world.state.failures, len(world.plans)) == (None, 0, 1)
    assert [told["worker"] for told in lost(world)] == ["w2", "w3", "w4", "w5", "w6", "w7"]
    assert {told["step"] for told in lost(world)} == {world.commits}
    assert newcomers(world) == []


def test_those_after_them_are_started_after_a_pause_that_doubles_up_to_its_bound():
    world = growing(to=3)
    world.die("w2")
    world.hear()
    lost_at, pauses = world.now, []
    for _ in range(5):
        while not newcomers(world):
            world.tick(0.25)
        pauses.append(world.now - lost_at)
        world.die(newcomers(world)[0])
        world.hear()
        lost_at = world.now
    assert pauses == [1, 2, 4, 4, 4]
    assert world.end is None


def test_once_one_of_them_has_committed_a_step_the_next_one_is_replaced_as_soon_as_the_first_was():
    world = growing(to=3)
    for _ in range(2):
        world.die(newcomers(world)[0])
        world.hear()
        world.tick(4.0)
    world.calm()
    world.commit()
    assert world.state.setbacks == ()
    world.die(world.current()[-1])
    world.calm()
    assert len(world.plan.members) == 3


def test_below_min_nobody_waits_for_a_pause_to_end():
    world = growing(to=4)
    for worker in newcomers(world):
        world.die(worker)
        world.hear()
    assert newcomers(world) == []
    world.die("w0")
    world.hear()
    assert newcomers(world) == ["w4"]
    world.tick(1.0)
    assert newcomers(world) == ["w4", "w5", "w6"]


def test_below_min_workers_that_die_before_they_commit_spend_the_failure_budget():
    world = growing(to=2)
    world.die("w0")
    world.hear()
    world.sense("w1")
    for worker in ("w2", "w3", "w4", "w5"):
        assert world.end is None
        world.die(worker)
        world.hear()
    assert world.end.reason == "min_workers_lost"


@pytest.mark.parametrize(
    "said",
    [
        ev.Failed("w2", "platform_error", "Traceback:\nOSError: [Errno 28] No space left on device\n", 0.0),
        ev.Raised("w2", 0, -1, "Traceback:\nOSError: [Errno 28] No space left on device\n", 0.0),
    ],
)
def test_what_a_joiner_says_ends_the_joiner_alone_and_is_told_with_its_reason(said):
    world = growing(to=4)
    for worker in ("w2", "w3"):
        world.tell(type(said)(worker, *[getattr(said, f) for f in said.__slots__[1:]]))
    cause = "raised" if isinstance(said, ev.Raised) else "platform_error"
    assert [(told["worker"], told["cause"]) for told in lost(world)] == [("w2", cause), ("w3", cause)]
    assert {told["why"] for told in lost(world)} == {"OSError: [Errno 28] No space left on device"}
    assert not world.processes["w2"].alive
    world.commit()
    assert (world.end, world.whole(), world.state.failures) == (None, True, 0)


def test_a_member_that_fails_ends_the_attempt_and_one_that_was_let_go_does_not():
    world = growing(to=3)
    world.tell(ev.Failed("w9", "out_of_memory", "no memory", world.now))
    assert world.end is None
    world.tell(ev.Failed("w1", "nonfinite_loss", "the loss is nan", world.now))
    assert world.end.reason == "nonfinite_loss"


def join(world: World) -> str:
    """Until a newcomer is a member that has not committed; returns it."""
    for _ in range(40):
        if len(world.plan.members) > 2:
            return world.plan.members[-1]
        for worker in world.alive():
            world.boot(worker)
            world.sense(worker)
        world.commit()
        if len(world.plan.members) == 2:
            world.tick(0.5)
    raise AssertionError(f"nobody joins: {world.state}")


def test_newcomers_that_raise_at_one_slice_do_not_end_the_attempt_and_a_proven_member_there_does():
    world = growing(to=3)
    for _ in range(2):
        world.raise_in(join(world), (7, 2))
        for worker in ("w0", "w1"):
            world.sense(worker)
        assert (world.end, world.whole()) == (None, True)
    assert [told["rank"] for told in lost(world)] == [2, 2]
    world.raise_in("w0", (7, 2))
    assert world.end.reason == "entrypoint_raised"


def test_a_newcomer_with_whom_every_exchange_breaks_is_parted_with_and_the_others_go_on():
    world = growing(to=3)
    newcomer, state, out = join(world), world.state, ()
    for number in range(1, 10):
        generation = state.generation
        for member in state.plan.members:
            now = world.now + 15.0 * number
            said = ev.Parked(
                member, now, ev.ParkReport(generation, world.commits, world.commits, "OSError: no route")
            )
            state, out = handle(state, said)
    assert (state.ended, [i for i in out if isinstance(i, Kill)]) == (None, [Kill(newcomer, "unreachable")])
    state, _ = handle(state, ev.Lost(newcomer, "died", now))
    assert state.plan.members == ("w0", "w1")


def test_a_late_word_of_one_pair_does_not_count_for_the_next():
    world = growing(workers_min=1, to=3, joiners_follow=True)
    world.boot("w2")
    pair = world.processes["w2"].pair
    world.die("w0")
    for worker in ("w1", "w2"):
        world.sense(worker)
    world.hear()
    world.tick(0.1)
    assert world.processes["w2"].pair == pair + 1
    world.tell(ev.InSync("w2", world.now, pair))
    assert not world.state.find("w2").in_sync
    world.draw_level("w2")
    assert world.state.find("w2").in_sync


def test_a_function_that_raises_at_once_everywhere_ends_the_first_gang():
    world = World.of(workers_min=2, workers_max=4, shards=4)
    world.tell(ev.Raised("w0", 0, -1, "Traceback: no such file", 0.0))
    assert world.end is None
    world.tell(ev.Raised("w1", 0, -1, "Traceback: no such file", 0.0))
    assert world.end.reason == "entrypoint_raised"


def test_a_new_server_that_fails_again_and_again_leaves_the_others_at_work():
    world = growing(to=2, servers=3, backups=1)
    world.die(next(n for n, p in world.processes.items() if p.role == "server"))
    world.hear()
    starts: list[float] = []
    for _ in range(60):
        for new in [w.id for w in world.state.workers if w.role == "server" and not w.proven]:
            starts.append(world.now)
            world.tell(ev.Failed(new, "out_of_memory", "no memory", world.now))
        world.hustle()
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses[:4] == [1, 2, 4, 4]
    assert (world.end, world.whole()) == (None, True)
