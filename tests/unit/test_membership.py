"""The rules of the membership machine, one history each."""

from membership_world import World

from ringleader.elastic import events as ev
from ringleader.elastic.membership import handle
from ringleader.elastic.state import Membership


def running(*, minimum: int = 1, maximum: int = 3, shards: int = 6, **servers: int) -> World:
    world = World.of(minimum=minimum, maximum=maximum, shards=shards, **servers)
    world.calm()
    world.commit()
    assert world.whole()
    return world


def reported(world: World, kind: str) -> list[dict[str, object]]:
    return [r.data for r in world.reports if r.type == kind]


def test_the_first_plan_waits_for_all_that_have_a_place():
    world = World.of(minimum=1, maximum=3, shards=3)
    world.boot("w0")
    world.boot("w1")
    assert not world.plans
    world.boot("w2")
    assert world.plan.members == ("w0", "w1", "w2")
    assert world.plan.cause == "start"
    assert world.plan.heals == (("w1", "w0"), ("w2", "w0"))


def test_the_first_plan_does_not_wait_for_those_without_a_place():
    world = World.of(minimum=1, maximum=3, shards=3)
    world.tell(ev.Waiting("w2", 0.0))
    world.boot("w0")
    world.boot("w1")
    assert world.plan.members == ("w0", "w1")


def test_the_first_plan_forms_after_the_grace_with_at_least_min():
    world = World.of(minimum=2, maximum=3, shards=3)
    world.boot("w0")
    world.tick(5)
    assert not world.plans
    world.boot("w1")
    world.tick(4.9)
    assert not world.plans
    world.tick(0.2)
    assert world.plan.members == ("w0", "w1")


def test_survivors_of_a_loss_go_on_without_waiting_for_the_replacement():
    world = running()
    world.die("w1")
    world.sense("w0")
    assert world.processes["w2"].interrupted
    world.sense("w2")
    assert len(world.plans) == 1
    world.hear()
    assert world.plan.members == ("w0", "w2")
    assert world.plan.cause == "lost"
    assert world.plan.heals == ()
    assert reported(world, "worker.lost") == [{"worker": "w1", "rank": 1, "cause": "died", "step": 2}]


def test_who_is_a_step_behind_heals_from_who_is_ahead():
    world = running()
    step = world.processes["w0"].applied
    world.commit(only=1)
    world.die("w2")
    world.hear()
    world.sense("w0")
    world.sense("w1")
    assert world.plan.start_step == step + 1
    assert world.plan.heals == (("w1", "w0"),)


def test_a_replacement_joins_at_a_boundary():
    world = running()
    world.die("w1")
    world.calm()
    assert world.plan.members == ("w0", "w2", "w3")
    assert world.plan.cause == "join"
    assert world.plan.heals == (("w3", "w0"),)
    assert reported(world, "worker.joined")[-1]["worker"] == "w3"


def test_a_member_that_does_not_park_is_killed_and_counts_when_its_death_is_certain():
    world = running()
    world.die("w1")
    world.hear()
    world.sense("w0")
    world.tick(0.5)
    world.tick(0.6)
    assert not world.processes["w2"].alive
    assert len(world.plans) == 1
    world.hear()
    assert world.plan.members == ("w0",)


def test_a_member_in_a_first_step_or_an_evaluation_has_all_the_time_to_park():
    world = running()
    world.die("w1")
    world.sense("w0")
    world.hear()
    assert world.processes["w2"].interrupted
    for _ in range(50):
        world.now += 10.0
        world.tell(ev.Tick(world.now, patience_s=1.0, unhurried=frozenset({"w2"})))
    assert len(world.plans) == 1
    world.sense("w2")
    assert world.plan.members == ("w0", "w2")


def test_fewer_than_min_wait_for_replacements():
    world = running(minimum=2, maximum=2, shards=2)
    world.die("w0")
    world.hear()
    world.sense("w1")
    assert world.state.status == "recovering"
    assert len(world.plans) == 1
    world.boot("w2")
    assert world.plan.members == ("w1", "w2")
    assert world.plan.heals == (("w2", "w1"),)
    assert world.state.status == "running"


def test_losing_every_holder_of_the_state_ends_the_attempt():
    world = running(maximum=2)
    for worker in ("w0", "w1"):
        world.die(worker)
        world.hear()
    assert world.end.reason == "min_workers_lost"


def test_workers_that_die_before_they_commit_spend_the_failure_budget():
    world = World.of(minimum=1, maximum=1, shards=1, max_failures=2)
    for worker in ("w0", "w1", "w2"):
        assert world.end is None
        world.die(worker)
        world.hear()
    assert world.end.reason == "min_workers_lost"
    assert "w2" in world.end.message


def test_a_worker_that_goes_with_its_node_before_it_commits_spends_no_failure():
    world = World.of(minimum=1, maximum=1, shards=1, max_failures=0)
    for worker in ("w0", "w1", "w2"):
        world.tell(ev.Lost(worker, ev.NODE_DIED, world.now))
        world.hear()
    assert (world.end, world.state.failures) == (None, 0)
    world.die("w3")
    world.hear()
    assert world.end.reason == "min_workers_lost"


def test_a_loss_that_the_group_survives_costs_no_failure():
    world = running()
    for _ in range(6):
        world.die(world.current()[-1])
        world.calm()
        world.commit()
    assert world.state.failures == 0


def test_a_shrinking_job_dismisses_the_highest_ranks_at_a_boundary():
    world = running()
    world.tell(ev.Resize(1, 2, world.now))
    assert len(world.plans) == 1
    world.commit()
    assert world.plan.members == ("w0", "w1")
    assert world.plan.cause == "resize"
    assert not reported(world, "worker.lost")


def test_a_growing_job_takes_all_new_workers_in_one_generation():
    world = running(maximum=1, shards=4)
    world.tell(ev.Resize(1, 3, world.now))
    world.boot("w1")
    world.commit()
    assert len(world.plans) == 1
    world.boot("w2")
    world.commit()
    assert world.plan.members == ("w0", "w1", "w2")
    assert world.plan.cause == "resize"


def test_a_stalled_or_slow_member_is_told_with_its_rank_and_goes_on():
    world = running()
    world.tell(ev.Stalled("w2", "forward", 31.0, world.now))
    world.tell(ev.Slow("w1", 0.5, 0.2, False, world.now))
    world.tell(ev.Stalled("w9", "forward", 31.0, world.now))
    step = world.state.committed
    assert reported(world, "worker.stalled") == [
        {"worker": "w2", "rank": 2, "step": step, "phase": "forward", "since_s": 31.0}
    ]
    told = {"worker": "w1", "rank": 1, "step": step, "step_s": 0.5, "others_s": 0.2, "evicted": False}
    assert reported(world, "worker.slow") == [told]
    world.calm()
    assert len(world.plans) == 1


def test_a_slow_worker_that_policy_evicts_leaves_at_a_boundary_and_is_replaced():
    world = running()
    world.tell(ev.Slow("w1", 0.5, 0.2, True, world.now))
    world.calm()
    assert [plan.cause for plan in world.plans] == ["start", "slow"]
    assert world.plan.members == ("w0", "w2", "w3")
    assert reported(world, "worker.lost") == []


def test_a_slow_worker_on_whom_min_depends_stays_until_its_replacement_is_there():
    world = running(minimum=3)
    world.tell(ev.Slow("w1", 0.5, 0.2, True, world.now))
    world.calm()
    assert [plan.world for plan in world.plans] == [3, 3]
    assert world.plan.members == ("w0", "w2", "w3")


def test_a_drained_worker_leaves_and_is_replaced():
    world = running(minimum=2, maximum=2, shards=2)
    world.tell(ev.Drain("w0", 30.0, world.now))
    world.commit()
    assert world.plan.members == ("w0", "w1")
    world.boot("w2")
    world.commit()
    assert world.plan.members == ("w1", "w2")
    assert world.plan.cause == "drain"


def test_the_same_exception_at_the_same_slice_twice_is_the_users_error():
    world = running()
    world.raise_in("w1", (7, 1))
    assert world.end is None
    world.calm()
    world.raise_in("w2", (7, 1))
    assert world.end.reason == "entrypoint_raised"
    assert "boom" in world.end.message


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
        assert world.plan.start_step == everywhere
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
    """A worker gives it the position, but has no optimiser state."""
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
    assert world.plan.start_step == newest
    assert {donor for _, donor in world.plan.heals} == {"s0"}
    assert {receiver for receiver, _ in world.plan.heals} == {"w2", "w4", "s1"}


def test_the_last_copy_of_a_server_ends_the_attempt():
    world = running(servers=2, copies=True)
    for server in ("s0", "s1"):
        assert world.end is None
        world.die(server)
        world.hear()
    assert world.end.reason == "platform_error"


def test_members_that_end_with_different_weights_are_named():
    world = running(maximum=2)
    world.tell(ev.Finished("w0", "aaa", world.now))
    world.tell(ev.Finished("w1", "bbb", world.now))
    assert world.end.reason == "platform_error"
    assert "w0 has aaa" in world.end.message
    assert "w1 has bbb" in world.end.message


def test_a_worker_lost_after_another_finished_is_not_replaced():
    world = running()
    world.tell(ev.Finished("w0", "same", world.now))
    world.tell(ev.Finished("w1", "same", world.now))
    world.die("w2")
    world.hear()
    assert world.end.outcome == "succeeded"
    assert "w3" not in world.processes


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
    world = running(minimum=3)
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
    members, step = world.plan.members, world.plan.start_step
    world.commit()
    assert world.end.outcome == "paused"
    assert (world.plan.members, world.plan.start_step) == (members, step)


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
    world = World.of(minimum=2, maximum=2, shards=4)
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
        state, _ = handle(state, ev.Parked(member, generation, 2, 2, "it left" if rank else why, now))
    return state


def test_exchanges_that_keep_breaking_though_nobody_is_lost_end_the_attempt_with_the_reason():
    world = running(maximum=2)
    state = world.state
    for number in range(1, 10):
        assert not state.ended
        state = broken_off(state, world.now + 15.0 * number)
    assert (state.ended.outcome, state.ended.reason) == ("failed", "platform_error")
    assert "9 times in a row" in state.ended.message  # from the first to 120 s after it
    assert "OSError: no route; it left" in state.ended.message


def test_an_exchange_that_breaks_often_within_a_short_time_or_between_steps_is_made_again():
    world = running(maximum=2)
    state, now = world.state, world.now
    for _ in range(20):
        state = broken_off(state, now := now + 1.0)
    state, _ = handle(state, ev.Committed("w0", state.generation, 3, now))
    for _ in range(4):
        state = broken_off(state, now := now + 1000.0)
    assert not state.ended


def test_a_pause_before_the_first_plan_has_nothing_to_save():
    world = World.of(minimum=2, maximum=2, shards=4)
    world.tell(ev.Pause(30.0, world.now))
    assert world.end.outcome == "paused"


def test_a_pause_ends_without_its_checkpoint_when_its_grace_is_over():
    world = running()
    world.tell(ev.Pause(3.0, world.now))
    world.tick(3.1)
    assert world.end.outcome == "paused"


def test_a_recovery_is_told_by_phase():
    world = running()
    world.now = 10.0
    world.die("w1")
    world.sense("w0")
    world.now = 10.1
    world.hear()
    world.now = 10.3
    world.sense("w2")
    world.now = 10.6
    for worker in world.current():
        world.tell(ev.Seated(worker, 2, world.now))
    world.now = 11.0
    for worker in world.current():
        world.tell(ev.Healed(worker, 2, world.now))
    world.now = 11.5
    world.commit()
    (data,) = reported(world, "recovered")
    spans = {key: round(value, 3) for key, value in data.items()}
    assert spans == {
        "detect_s": 0.1,
        "decide_s": 0.2,
        "regroup_s": 0.3,
        "heal_s": 0.4,
        "redo_s": 0.5,
        "total_s": 1.5,
        "steps_lost": 0,
    }


def test_the_last_holder_of_the_state_that_raises_ends_the_attempt_with_its_traceback():
    world = running(maximum=1)
    world.tell(ev.Raised("w0", 2, 0, "ValueError: mine", 0.0))
    assert world.state.ended is not None
    assert (world.state.ended.reason, world.state.ended.message) == ("entrypoint_raised", "ValueError: mine")
    assert "local_session" in world.state.ended.hint


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
    assert world.plan.start_step == everywhere
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


def test_who_has_to_leave_leaves_at_a_boundary_for_a_reason_that_is_told_and_spends_no_failure():
    world = running(minimum=1, maximum=3)
    step = world.processes["w1"].applied
    world.tell(ev.Drain("w1", world.now + 30, world.now, "SIGTERM"))
    world.commit()
    assert world.plan.members == ("w0", "w2")
    assert world.plan.start_step == step + 1
    assert reported(world, "worker.left") == [
        {"worker": "w1", "cause": "drain", "why": "SIGTERM", "step": step + 1}
    ]
    assert not reported(world, "worker.lost")
    assert world.state.failures == 0
