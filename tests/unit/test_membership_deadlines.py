"""Machines that go away at a known time: who leaves, who stays, and when all stop for a checkpoint."""

from membership_world import World
from test_membership import reported, running

from ringleader.elastic import events as ev


def kept_short(*, for_s: float) -> World:
    """Two workers, both needed, one of whose machines goes away; nobody finds a place for another one."""
    found = running(workers_min=2, workers_max=2, shards=2)
    found.drain("w1", for_s, "its node is drained")
    return found


def test_who_waits_for_a_replacement_in_vain_stops_for_a_checkpoint_before_the_machine_goes_away():
    world = kept_short(for_s=30.0)
    world.tick(19.9)
    world.commit()
    assert (len(world.plans), world.end) == (1, None), "there is time for somebody to come"
    world.tick(0.1)
    world.commit()
    assert (world.plan.cause, world.plan.members, world.end) == ("pause", ("w0", "w1"), None)
    step = world.plan.start_transaction
    world.commit()
    assert (world.end.outcome, world.end.reason) == ("preempted", "preempted")
    assert "w1 (its node is drained)" in world.end.message
    assert "1 would be left, and workers.min is 2" in world.end.message
    assert (step, world.state.failures, reported(world, "worker.lost")) == (world.commits, 0, [])


def test_a_checkpoint_that_takes_longer_is_begun_earlier():
    world = kept_short(for_s=60.0)
    since = world.now
    for waited_s, stops in ((19.9, False), (20.0, True)):
        world.tell(ev.Tick(since + waited_s, patience_s=4.0, saving_s=20.0))
        assert bool(world.state.pausing) is stops


def test_a_replacement_that_comes_in_time_lets_the_attempt_go_on():
    world = kept_short(for_s=30.0)
    world.tick(15.0)
    world.boot("w2")
    world.commit()
    assert (world.plan.cause, world.plan.members) == ("drain", ("w0", "w2"))
    world.tick(20.0)
    world.hear()
    world.commit()
    assert (world.end, world.whole(), reported(world, "worker.lost")) == (None, True, [])


def test_of_those_who_have_to_leave_the_one_that_can_stay_longest_stays_where_min_needs_it():
    world = running(workers_min=2, workers_max=3)
    world.drain("w0", 300.0)
    world.drain("w1", 30.0)
    for _ in range(2):
        world.commit()
    assert world.plan.members == ("w2", "w0")
    assert world.state.pause_by is None


def test_a_server_that_nobody_has_a_copy_of_is_saved_before_its_machine_goes_away():
    for backups, stops in ((0, True), (1, False)):
        world = running(workers_min=2, workers_max=2, shards=2, servers=2, backups=backups)
        world.drain("s1", 30.0)
        world.tick(20.0)
        assert bool(world.state.pausing) is stops


def test_servers_that_go_away_together_with_all_that_they_hold_are_saved():
    world = running(workers_min=2, workers_max=2, shards=2, servers=2, backups=1)
    world.drain("s0", 30.0)
    world.tick(3.0)
    world.drain("s1", 30.0)
    world.tick(19.0)
    assert not world.state.pausing
    world.tick(1.0)
    assert world.state.pausing


def test_machines_that_are_gone_before_all_is_saved_leave_it_to_the_others_and_spend_no_failure():
    world = kept_short(for_s=12.0)
    world.tick(5.0)
    assert world.state.pausing
    world.tick(7.0)
    world.hear()
    world.sense("w0")
    world.commit()
    world.commit()
    assert (world.plan.cause, world.plan.members) == ("pause", ("w0",))
    world.commit()
    assert (world.end.outcome, world.state.failures) == ("preempted", 0)


def test_an_attempt_that_loses_everybody_while_it_is_preempted_spends_no_failure():
    world = kept_short(for_s=12.0)
    world.tick(5.0)
    world.die("w0")
    world.die("w1")
    world.hear()
    world.hear()
    assert world.end.outcome == "preempted"
