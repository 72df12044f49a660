"""Too few are left to go on: what one of them alone holds is saved while they wait, once, and nobody waits for that."""

from membership_world import World
from test_membership import running

from ringleader.elastic import events as ev


def short(left: str = "w0", **changes: int | bool) -> World:
    """All workers but one are gone, and the group needs two; nobody has come in their place yet."""
    world = running(**{"workers_min": 2, "workers_max": 3, "secures": True} | changes)
    for worker in [m for m in world.plan.members if m.startswith("w") and m != left]:
        world.die(worker)
        world.hear()
    for member in world.current():
        world.sense(member)
    return world


def test_what_a_single_worker_is_left_with_is_saved_once_while_it_waits_for_others():
    world = short()
    assert (world.plan.cause, world.plan.members, world.plan.start_transaction) == (
        "short",
        ("w0",),
        world.commits,
    )
    world.commit()
    assert world.processes["w0"].parked
    for _ in range(5):
        world.tick(1.0)
    assert (len(world.plans), world.state.status) == (2, "recovering")
    world.calm()
    assert [plan.cause for plan in world.plans][:3] == ["start", "short", "join"]


def test_two_workers_that_are_too_few_hold_the_same_and_save_nothing():
    world = running(workers_min=3, workers_max=3, secures=True)
    world.die("w2")
    world.hear()
    for worker in ("w0", "w1"):
        world.sense(worker)
    assert len(world.plans) == 1
    world.die("w1")
    world.hear()
    assert (world.plan.cause, world.plan.members) == ("short", ("w0",))


def test_a_newcomer_ends_the_saving_as_soon_as_there_are_enough():
    world = short()
    world.boot("w3")
    assert world.processes["w0"].announced
    world.commit()
    assert (world.plan.cause, world.plan.members) == ("join", ("w0", "w3"))
    assert world.plan.heals == (("w3", "w0"),)


def test_a_newcomer_that_is_not_enough_does_not():
    world = short(workers_min=3, workers_max=4)
    world.boot("w4")
    assert (world.plan.cause, world.plan.members) == ("short", ("w0",))
    assert not world.processes["w0"].announced
    world.commit()
    world.tick(1.0)
    assert len(world.plans) == 2


def test_nobody_follows_a_member_that_saves():
    world = short(workers_min=3, workers_max=4, joiners_follow=True)
    world.boot("w4")
    assert world.processes["w4"].donor == ""


def test_the_time_that_too_few_may_wait_goes_on_while_they_save():
    world = short()
    since = world.now
    for passed_s in (450.0, 900.0):
        world.tell(ev.Tick(since + passed_s, patience_s=1.0))
        world.commit()
    assert world.end is None
    world.tell(ev.Tick(since + 900.1, patience_s=1.0))
    assert (world.end.outcome, world.end.reason) == ("failed", "min_workers_lost")


def test_a_pause_saves_what_the_last_one_holds_as_well():
    world = short()
    world.tell(ev.Pause(1000.0, world.now))
    assert world.processes["w0"].announced
    world.commit()
    assert world.plan.cause == "pause"
    world.commit()
    assert world.end.outcome == "paused"


def test_the_loss_of_who_saves_ends_the_attempt():
    world = short()
    world.die("w0")
    world.hear()
    assert (world.end.outcome, world.end.reason) == ("failed", "min_workers_lost")


def test_servers_whose_workers_are_all_gone_save_their_parts():
    world = short(left="", servers=2)
    assert (world.plan.cause, world.plan.members, world.plan.world) == ("short", ("s0", "s1"), 0)
    world.commit()
    world.calm()
    assert world.plan.world == 3


def test_servers_that_are_copies_save_nothing_before_a_single_one_is_left():
    world = short(left="w2", servers=2, copies=True)
    assert len(world.plans) == 1
    world.die("s0")
    world.hear()
    assert (world.plan.cause, world.plan.members) == ("short", ("w2", "s1"))


def test_before_the_first_step_there_is_nothing_to_save():
    world = World.of(workers_min=2, workers_max=2, shards=2, secures=True)
    for worker in ("w0", "w1"):
        world.boot(worker)
    world.die("w1")
    world.hear()
    world.sense("w0")
    assert [plan.cause for plan in world.plans] == ["start"]


def test_where_time_secures_nothing_nobody_is_made_to_save():
    assert len(short(secures=False).plans) == 1
