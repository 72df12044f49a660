"""The rules of the membership machine, one history each."""

import pytest
from membership_world import World

from ringleader.elastic import events as ev
from ringleader.elastic.membership import LAST_HOLDER
from ringleader.elastic.state import GIVES_BACK


def running(*, workers_min: int = 1, workers_max: int = 3, shards: int = 6, **servers: int) -> World:
    world = World.of(workers_min=workers_min, workers_max=workers_max, shards=shards, **servers)
    world.calm()
    world.commit()
    assert world.whole()
    return world


def reported(world: World, kind: str) -> list[dict[str, object]]:
    return [r.data for r in world.reports if r.type == kind]


def test_the_first_plan_waits_for_all_that_have_a_place():
    world = World.of(workers_min=1, workers_max=3, shards=3)
    world.boot("w0")
    world.boot("w1")
    assert not world.plans
    world.boot("w2")
    assert world.plan.members == ("w0", "w1", "w2")
    assert world.plan.cause == "start"
    assert world.plan.heals == (("w1", "w0"), ("w2", "w0"))


def test_the_first_plan_does_not_wait_for_those_without_a_place():
    world = World.of(workers_min=1, workers_max=3, shards=3)
    world.tell(ev.Waiting("w2", 0.0))
    world.boot("w0")
    world.boot("w1")
    assert world.plan.members == ("w0", "w1")


def test_the_first_plan_forms_after_the_grace_with_at_least_min():
    world = World.of(workers_min=2, workers_max=3, shards=3)
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
    assert world.plan.start_transaction == step + 1
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


def test_the_last_member_that_holds_the_state_has_more_time_to_park():
    """On a busy machine it parks late; without it the attempt would be over."""
    world = running(workers_min=1, workers_max=2, shards=2)
    world.die("w1")
    world.hear()
    assert world.processes["w0"].interrupted
    world.tick(3.0)
    world.tick(3.0)
    assert world.processes["w0"].alive
    world.sense("w0")
    assert world.plan.members == ("w0",)


def test_the_last_member_that_never_parks_is_killed_in_the_end():
    world = running(workers_min=1, workers_max=2, shards=2)
    world.die("w1")
    world.hear()
    world.tick(LAST_HOLDER + 0.1)
    assert not world.processes["w0"].alive


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
    world = running(workers_min=2, workers_max=2, shards=2)
    world.die("w0")
    world.hear()
    world.sense("w1")
    assert world.state.status == "recovering"
    assert len(world.plans) == 1
    world.boot("w2")
    assert world.plan.members == ("w1", "w2")
    assert world.plan.heals == (("w2", "w1"),)
    assert world.state.status == "running"


@pytest.mark.parametrize(
    ("placed", "said"), [(False, "no replacement could be started"), (True, "w2 was started but did not")]
)
def test_an_end_for_want_of_workers_says_whether_a_replacement_had_started(placed: bool, said: str):
    world = running(workers_min=2, workers_max=2, shards=2)
    world.die("w0")
    world.hear()
    world.sense("w1")
    if not placed:
        world.tell(ev.Waiting("w2", world.now))
    world.now += world.state.rules.recover_s + 1
    world.tell(ev.Tick(world.now, patience_s=1e9))
    assert world.end.reason == "min_workers_lost"
    assert said in world.end.message


def test_losing_every_holder_of_the_state_ends_the_attempt():
    world = running(workers_max=2)
    for worker in ("w0", "w1"):
        world.die(worker)
        world.hear()
    assert world.end.reason == "min_workers_lost"


def test_workers_that_die_before_they_commit_spend_the_failure_budget():
    world = World.of(workers_min=1, workers_max=1, shards=1, max_failures=2)
    for worker in ("w0", "w1", "w2"):
        assert world.end is None
        world.die(worker)
        world.hear()
    assert world.end.reason == "min_workers_lost"
    assert "w2" in world.end.message


def test_steps_that_are_committed_give_failures_back_and_newcomers_that_die_one_after_the_other_do_not():
    world = running(workers_min=2, workers_max=2, max_failures=1)

    def replace_twice() -> None:
        """A member is lost, and whoever comes for it dies before a step is committed."""
        world.die(world.current()[-1])
        world.hear()
        world.die(max(world.processes, key=lambda name: int(name[1:])))
        world.hear()

    for _ in range(6):
        replace_twice()
        assert (world.end, world.state.spent) == (None, 1)
        world.calm()
        for _ in range(GIVES_BACK):
            world.commit()
        assert world.state.spent == 0
    replace_twice()
    world.calm()
    for _ in range(GIVES_BACK // 2):
        world.commit()
    replace_twice()
    assert world.end.reason == "min_workers_lost"


def test_a_worker_that_goes_with_its_node_before_it_commits_spends_no_failure():
    world = World.of(workers_min=1, workers_max=1, shards=1, max_failures=0)
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
    world = running(workers_max=1, shards=4)
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
    world = running(workers_min=3)
    world.tell(ev.Slow("w1", 0.5, 0.2, True, world.now))
    world.calm()
    assert [plan.world for plan in world.plans] == [3, 3]
    assert world.plan.members == ("w0", "w2", "w3")


def test_a_drained_worker_leaves_and_is_replaced():
    world = running(workers_min=2, workers_max=2, shards=2)
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


def test_members_that_end_with_different_weights_are_named():
    world = running(workers_max=2)
    world.tell(ev.Finished("w0", "aaa", world.now))
    world.tell(ev.Finished("w1", "bbb", world.now))
    assert world.end.reason == "platform_error"
    assert "w0 has aaa" in world.end.message
    assert "w1 has bbb" in world.end.message


def test_members_that_the_program_made_end_with_different_weights_are_its_own_error():
    world = running(workers_max=2)
    world.tell(ev.Finished("w0", "aaa", world.now))
    world.tell(
        ev.Finished("w1", "bbb", world.now, "the program's meter.sum (train.py:7) differs between workers")
    )
    assert world.end.reason == "entrypoint_raised"
    assert world.end.message == (
        "the members' final weights differ: w0 has aaa, w1 has bbb. The program's meter.sum (train.py:7) differs "
        "between workers."
    )


def test_a_worker_lost_after_another_finished_is_not_replaced():
    world = running()
    world.tell(ev.Finished("w0", "same", world.now))
    world.tell(ev.Finished("w1", "same", world.now))
    world.die("w2")
    world.hear()
    assert world.end.outcome == "succeeded"
    assert "w3" not in world.processes


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
    world = running(workers_max=1)
    world.tell(ev.Raised("w0", 2, 0, "ValueError: mine", 0.0))
    assert world.state.ended is not None
    assert (world.state.ended.reason, world.state.ended.message) == ("entrypoint_raised", "ValueError: mine")
    assert "local_session" in world.state.ended.hint


def test_who_has_to_leave_leaves_at_a_boundary_for_a_reason_that_is_told_and_spends_no_failure():
    world = running(workers_min=1, workers_max=3)
    step = world.processes["w1"].applied
    world.tell(ev.Drain("w1", world.now + 30, world.now, "SIGTERM"))
    world.commit()
    assert world.plan.members == ("w0", "w2")
    assert world.plan.start_transaction == step + 1
    assert reported(world, "worker.left") == [
        {"worker": "w1", "cause": "drain", "why": "SIGTERM", "step": step + 1}
    ]
    assert not reported(world, "worker.lost")
    assert world.state.failures == 0
