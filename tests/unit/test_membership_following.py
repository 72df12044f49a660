"""Joiners that follow members: the rules of the membership machine, one history each."""

from membership_world import World

from ringleader.elastic import events as ev
from ringleader.elastic.state import Phase


def following(joiners: int = 1) -> World:
    """Two members, and joiners that follow them."""
    world = World.of(workers_min=1, workers_max=2, shards=6, joiners_follow=True)
    world.calm()
    world.commit()
    world.tell(ev.Resize(1, 2 + joiners, world.now))
    for joiner in list(world.processes)[2:]:
        world.boot(joiner)
    return world


def test_a_joiner_follows_a_member_and_joins_at_a_boundary_once_it_is_level():
    world = following()
    assert world.processes["w2"].donor
    world.commit()
    assert len(world.plans) == 1
    world.draw_level("w2")
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2")
    assert world.plan.heals == ()


def test_a_joiner_that_repeats_that_it_waits_while_it_follows_is_not_told_to_follow_again():
    world = following()
    world.echo("w2")
    assert world.state.find("w2").phase is Phase.FOLLOWING
    assert world.state.pairs_made == 1
    world.draw_level("w2")
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2")


def test_joiners_follow_different_members_and_join_together():
    world = following(joiners=2)
    assert {world.processes[w].donor for w in ("w2", "w3")} == {"w0", "w1"}
    world.draw_level("w2")
    world.commit()
    assert len(world.plans) == 1
    world.draw_level("w3")
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2", "w3")


def test_members_wait_a_second_for_a_joiner_that_had_been_level_and_then_go_on_without_it():
    world = following()
    world.draw_level("w2")
    world.processes["w2"].cut = True
    world.commit()
    assert len(world.plans) == 1
    world.tick(1.1)
    assert world.plan.members == ("w0", "w1")


def test_a_joiner_that_lost_whom_it_followed_twice_is_healed_while_all_wait():
    world = following()
    for _ in range(2):
        assert len(world.plans) == 1
        world.processes["w2"].interrupted = True
        world.sense("w2")
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2")
    assert [receiver for receiver, _ in world.plan.heals] == ["w2"]


def test_a_joiner_that_differs_from_whom_it_followed_is_healed_at_the_same_boundary():
    world = following()
    world.draw_level("w2")
    world.stray("w2")
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2")
    assert [receiver for receiver, _ in world.plan.heals] == ["w2"]
    (told,) = [report.data for report in world.reports if report.type == "worker.astray"]
    assert (told["worker"], told["what"]) == ("w2", "1.weight")


def test_a_joiner_that_differs_and_is_too_late_for_the_boundary_is_healed_at_the_next():
    world = following()
    world.draw_level("w2")
    world.stray("w2")
    world.processes["w2"].cut = True
    world.commit()
    world.tick(1.1)
    assert world.plan.members == ("w0", "w1")
    world.processes["w2"].cut = False
    world.stand("w2", world.processes["w2"])
    assert world.state.pairs_made == 1
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2")
    assert [receiver for receiver, _ in world.plan.heals] == ["w2"]


def test_a_recovery_does_not_take_in_a_joiner_that_has_no_state_yet():
    world = following()
    world.die("w1")
    world.hear()
    world.sense("w0")
    assert world.plan.members == ("w0",)
    world.sense("w2")
    assert world.processes["w2"].donor == "w0"


def test_a_joiner_is_in_no_plan_while_it_runs_lines_and_nobody_waits_for_it():
    world = following()
    world.begin_lines("w2")
    for _ in range(3):
        world.commit()
    world.die("w1")
    world.hear()
    world.sense("w0")
    assert world.plan.members == ("w0",)
    world.commit()
    world.draw_level("w2")  # it stands behind its lines
    assert world.processes["w2"].donor == "w0"
    assert len(world.plans) == 2


def test_lines_that_a_joiner_has_run_are_no_try_to_follow():
    world = following()
    for _ in range(5):
        world.begin_lines("w2")
        world.draw_level("w2")
    assert world.state.find("w2").times_followed == 1
    world.draw_level("w2")
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2")
    assert world.plan.heals == ()


def test_pairs_that_end_with_a_generation_are_no_tries_to_follow():
    """A joiner may know that its donor is dead before the supervisor does, and be sent to another one that gives up."""
    world = following()
    world.die("w1")
    for _ in range(2):
        world.processes["w2"].interrupted = True
        world.sense("w2")
    assert world.state.find("w2").times_followed == 2
    world.hear()
    world.sense("w0")
    assert world.plan.members == ("w0",)
    world.tick(0.1)
    assert world.processes["w2"].donor == "w0"
    world.boot("w3")
    for joiner in ("w2", "w3"):
        world.draw_level(joiner)
    world.commit()
    assert world.plan.members == ("w0", "w2", "w3")
    assert world.plan.heals == ()


def test_a_joiner_in_its_lines_is_called_when_too_few_are_left_without_it():
    world = following()
    world.tell(ev.Resize(2, 3, world.now))
    world.begin_lines("w2")
    world.die("w1")
    world.hear()
    world.sense("w0")
    assert len(world.plans) == 1
    assert world.processes["w2"].interrupted
    world.sense("w2")
    assert world.plan.members == ("w0", "w2")
    assert world.plan.heals == (("w2", "w0"),)


def test_where_servers_make_the_updates_a_joiner_is_healed_once_its_lines_are_run():
    world = World.of(workers_min=1, workers_max=2, shards=6, servers=1, joiners_follow=True)
    world.calm()
    world.commit()
    world.tell(ev.Resize(1, 3, world.now))
    world.boot("w3")
    world.begin_lines("w3")
    world.commit()
    world.draw_level("w3")  # it stands behind its lines, and asks again
    world.commit()
    assert len(world.plans) == 1
    world.draw_level("w3")
    world.commit()
    assert world.plan.members == ("w1", "w2", "w3", "s0")
    assert world.plan.heals == (("w3", "s0"),)


def test_a_server_has_its_seat_at_once_and_runs_its_lines_with_it():
    """What servers have recorded of optimizers' states no worker can tell it."""
    world = World.of(workers_min=1, workers_max=2, shards=6, servers=2, copies=True, joiners_follow=True)
    world.calm()
    world.commit()
    world.die("s0")
    world.hear()
    for worker in world.alive():
        world.sense(worker)
    world.commit()
    world.boot("s4")
    world.commit()
    assert world.plan.members == ("w2", "w3", "s1", "s4")
    assert world.state.pairs_made == 0
