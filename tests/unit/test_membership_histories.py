"""What holds in every history: thousands of generated ones, checked after each event (see membership_world.py)."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from membership_world import World

from ringleader.elastic import events as ev

FREQUENT = ("boot", "boot", "commit", "commit", "hear", "hear", "sense", "sense", "sense")
RARE = ("partial", "kill", "tick", "resize", "drain", "evict", "wait", "raise", "pause")
moment = st.tuples(st.sampled_from(FREQUENT + RARE), st.integers(0, 7), st.integers(0, 7))
moments = st.lists(moment, min_size=5, max_size=60)


def happen(world: World, moment: str, a: int, b: int) -> None:
    alive = world.alive()
    worker = alive[a % len(alive)] if alive else ""
    match moment:
        case "commit":
            world.commit()
        case "partial" if world.whole():
            world.commit(only=b % (len(world.plan.members) + 1))
            world.die(world.plan.members[a % len(world.plan.members)])
        case "hear":
            world.hear()
        case "tick":
            world.tick(0.3 * b)
        case "pause" if b == 0:
            world.tell(ev.Pause(1000.0, world.now))
        case "resize":
            world.tell(ev.Resize(1 + a % 3, 1 + a % 3 + b % 3, world.now))
        case _ if worker:
            befall(world, moment, worker, b)


def befall(world: World, moment: str, worker: str, b: int) -> None:
    match moment:
        case "boot":
            world.boot(worker)
        case "kill":
            world.die(worker)
        case "sense":
            world.sense(worker)
        case "drain":
            world.tell(ev.Drain(worker, world.now + 30, world.now))
        case "evict":
            world.tell(ev.Evict(worker, "frozen", world.now))
        case "wait":
            world.tell(ev.Waiting(worker, world.now))
        case "raise":
            world.raised += 1
            world.raise_in(worker, (world.raised, 0))


@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    minimum=st.integers(1, 3),
    more=st.integers(0, 3),
    servers=st.sampled_from((0, 0, 1, 2, 3)),
    kept=st.sampled_from(("once", "by_all", "twice")),
    started=st.booleans(),
    history=moments,
    finish=st.booleans(),
)
def test_every_history_keeps_the_invariants_and_ends_quiet(
    minimum, more, servers, kept, started, history, finish
):
    world = World.of(
        minimum=minimum,
        maximum=minimum + more,
        shards=8,
        servers=servers,
        copies=kept == "by_all" and servers > 0,
        backups=int(kept == "twice" and servers > 1),
    )
    if started:
        world.calm()
    for moment, a, b in history:
        if world.end:
            break
        happen(world, moment, a, b)
    world.calm()
    if finish and not world.end:
        world.finish()
        assert world.end.outcome == "succeeded"
