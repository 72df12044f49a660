"""Parameter servers that are lost, ahead, or new: replaced where others hold their state, else the attempt ends."""

from membership_world import World
from test_membership import running


def test_a_lost_server_ends_the_attempt_as_a_platform_error():
    world = running(servers=1)
    assert world.plan.members[-1] == "s0"
    assert all(donor == "s0" for _, donor in world.plan.heals)
    world.die("s0")
    world.hear()
    assert world.end.reason == "platform_error"


def test_a_server_that_applied_a_step_alone_waits_for_the_others_to_repeat_it():
    world = running(servers=2)
    everywhere = world.processes["w2"].applied
    world.commit(only=1)
    assert {n for n, p in world.processes.items() if p.applied > everywhere} == {"s0"}
    for victim in ("w2", "w3"):
        world.die(victim)
        world.hear()
        for worker in world.alive():
            world.sense(worker)
        assert world.plan.start_transaction == everywhere
        assert ("s0", "s1") in world.plan.heals
        assert not any(donor == "s0" for _, donor in world.plan.heals)
        world.commit(only=0)  # all heal, and nobody applies anything
    world.commit()
    assert {p.applied for n, p in world.processes.items() if n in world.plan.members} == {everywhere + 1}


def test_a_lost_copy_of_a_server_is_replaced_and_healed_by_another_one():
    world = running(servers=2, copies=True)
    world.die("s0")
    world.hear()
    for worker in world.alive():
        world.sense(worker)
    assert world.plan.members == ("w2", "w3", "w4", "s1")
    world.commit()
    world.boot("s5")
    world.commit()
    assert world.plan.members == ("w2", "w3", "w4", "s1", "s5")
    assert world.plan.heals == (("s5", "s1"),)
    assert not world.end


def test_a_new_server_waits_while_only_workers_have_the_scores_of_an_evaluation():
    """A worker gives it the position, but has no optimizer state."""
    world = running(servers=2, copies=True)
    world.die("s0")
    world.hear()
    for worker in world.alive():
        world.sense(worker)
    world.commit()
    for worker in ("w2", "w3", "w4"):
        world.processes[worker].applied += 1
        world.processes[worker].line += (world.plan.generation,)
    world.boot("s5")
    world.die("w4")
    world.hear()
    for worker in world.alive():
        world.sense(worker)
    assert world.plan.members == ("w2", "w3", "s1")
    assert world.plan.heals == (("s1", "w2"),)
    world.calm()
    assert [heal for heal in world.plan.heals if heal[0] == "s5"] == [("s5", "s1")]


def test_the_copy_of_a_server_that_is_ahead_heals_everybody():
    world = running(servers=2, copies=True)
    world.commit(only=1)
    newest = world.processes["s0"].applied
    world.die("w3")
    world.hear()
    for worker in world.alive():
        world.sense(worker)
    assert world.plan.start_transaction == newest
    assert {donor for _, donor in world.plan.heals} == {"s0"}
    assert {receiver for receiver, _ in world.plan.heals} == {"w2", "w4", "s1"}


def test_the_last_copy_of_a_server_ends_the_attempt():
    world = running(servers=2, copies=True)
    for server in ("s0", "s1"):
        assert world.end is None
        world.die(server)
        world.hear()
    assert world.end.reason == "platform_error"


def lose_and_park(world: World, victim: str) -> None:
    world.die(victim)
    world.hear()
    for worker in world.alive():
        world.sense(worker)


def test_a_lost_server_with_a_backup_is_replaced_in_its_slot():
    world = running(servers=3, backups=1)
    lose_and_park(world, "s1")
    assert world.plan.members == ("w3", "w4", "w5", "s0", "s2")
    assert world.plan.slots == (0, 2)
    assert world.plan.held_by == ((0,), (1,), (1, 0))
    world.commit()
    world.boot("s6")
    world.commit()
    assert world.plan.members == ("w3", "w4", "w5", "s0", "s2", "s6")
    assert world.plan.slots == (0, 2, 1)
    assert world.plan.held_by == ((0, 2), (2, 1), (1, 0))
    assert [receiver for receiver, _ in world.plan.heals] == ["s6"]
    assert not world.end


def test_servers_lost_one_after_the_other_cost_nothing():
    world = running(servers=2, backups=1)
    for victim, other in (("s0", "s1"), ("s1", "s5"), ("s5", "s6")):
        lose_and_park(world, victim)
        assert world.plan.members[-1] == other
        world.calm()
        world.commit()
    assert world.end is None


def test_a_server_and_its_backup_lost_together_end_the_attempt():
    world = running(servers=3, backups=1)
    world.die("s1")
    world.hear()
    assert world.end is None
    world.die("s2")
    world.hear()
    assert world.end.reason == "platform_error"


def test_a_server_and_a_worker_lost_together_cost_nothing():
    world = running(servers=2, backups=1)
    world.die("w2")
    world.die("s1")
    world.calm()
    assert world.end is None
    assert len(world.plan.members) == 5


def test_a_new_server_waits_while_one_of_the_others_is_ahead():
    """Whom it would get its part from may have a step more of it than everybody has of the rest."""
    world = running(servers=3, backups=1)
    lose_and_park(world, "s2")
    everywhere = world.processes["w3"].applied
    world.commit(only=1)
    world.boot("s6")
    lose_and_park(world, "w4")
    assert world.plan.members == ("w3", "w5", "s0", "s1")
    assert world.plan.start_transaction == everywhere
    assert world.plan.heals == (("s0", "s1"),)
    world.calm()
    assert "s6" in world.plan.members


def test_a_server_that_broke_before_it_had_its_part_is_new_again():
    """Its backup is lost: nobody takes what it has for the state."""
    world = running(servers=2, backups=1)
    lose_and_park(world, "s0")
    world.commit()
    world.boot("s5")
    world.commit()
    assert world.plan.members[-2:] == ("s1", "s5")
    lose_and_park(world, "w2")
    assert "s5" in world.plan.members
    world.die("s1")
    world.hear()
    world.calm()
    assert world.end.outcome == "failed"
