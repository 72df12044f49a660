"""Who is evicted, and how long one waits: from heartbeats alone."""

import pytest

from ringleader.runtime.supervisor.failure_detector import Eviction, FailureDetector, ProcessGlance


def verdicts(watch: FailureDetector, now: float) -> list[tuple[str, str]]:
    return [(verdict.worker, verdict.cause) for verdict in watch.verdicts(now)]


def look(
    watch: FailureDetector,
    until: float,
    *,
    start: float = 0.0,
    beats: dict[str, tuple[int, str, int]] | None = None,
):
    """Let time pass in ticks of 0.1 s; `beats` keep coming as they are. Returns the verdicts."""
    found = []
    for tick in range(int(start * 10), int(until * 10) + 1):
        now = tick / 10
        for worker, (moves, phase, step) in (beats or {}).items():
            watch.beat(worker, generation=1, moves=moves, phase=phase, step=step, now=now)
        found += verdicts(watch, now)
    return found


def test_a_worker_without_heartbeats_is_frozen_after_three_seconds():
    watch = FailureDetector(stall_timeout_s=300)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=1, now=0.0)
    assert look(watch, 2.9) == []
    assert look(watch, 3.3, start=3.0) == [("w0", "frozen")]
    assert look(watch, 9.0, start=3.4) == [], "evicted once"


def test_a_process_that_a_signal_has_stopped_is_frozen_as_soon_as_that_is_seen():
    watch = FailureDetector(stall_timeout_s=300)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=1, now=0.0)
    assert watch.silent(0.9) == ()
    assert watch.silent(1.1) == ("w0",)
    watch.glanced("w0", ProcessGlance(stopped=True, cpu_s=5.0), 1.1)
    assert watch.verdicts(1.1) == [Eviction("w0", "frozen", since=0.0)]


def test_a_look_that_comes_back_after_the_next_heartbeat_says_nothing():
    watch = FailureDetector(stall_timeout_s=300)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=1, now=0.0)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=1, now=1.2)
    watch.glanced("w0", ProcessGlance(stopped=True, cpu_s=5.0), 1.3)
    assert verdicts(watch, 1.3) == []


def test_a_process_that_runs_without_beating_is_not_frozen_for_half_a_minute_of_its_own_time():
    """User code that holds the lock of the interpreter lets nobody else run; a busy machine takes longer over it."""
    watch = FailureDetector(stall_timeout_s=300)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=1, now=0.0)
    found = []
    for tick in range(11, 1600):
        watch.glanced("w0", ProcessGlance(stopped=False, cpu_s=tick / 50), tick / 10)
        found += [(tick // 10, *verdict) for verdict in verdicts(watch, tick / 10)]
    assert found == [(151, "w0", "frozen")]


def test_a_process_that_neither_runs_nor_beats_is_frozen_after_three_seconds():
    watch = FailureDetector(stall_timeout_s=300)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=1, now=0.0)
    found = []
    for tick in range(11, 40):
        watch.glanced("w0", ProcessGlance(stopped=False, cpu_s=7.0), tick / 10)
        found += [(tick, *verdict) for verdict in verdicts(watch, tick / 10)]
    assert found == [(31, "w0", "frozen")]


def test_a_stall_is_told_once_before_anybody_is_evicted_and_again_after_the_next():
    watch = FailureDetector(stall_timeout_s=20)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=0, now=0.0)
    told = []
    for tick in range(1, 100):
        moves = 2 if tick < 50 else 3
        watch.beat("w0", generation=1, moves=moves, phase="forward", step=1, now=tick / 10)
        told += [(tick, s.worker, s.phase) for s in watch.stalls(tick / 10)]
        assert verdicts(watch, tick / 10) == []
    assert told == [(22, "w0", "forward"), (71, "w0", "forward")]


def test_where_steps_take_longer_than_the_policys_time_one_that_takes_as_long_is_no_stall():
    watch = FailureDetector(stall_timeout_s=1)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=0, now=0.0)
    watch.beat("w0", generation=1, moves=2, phase="committed", step=1, now=1.0)
    watch.beat("w0", generation=1, moves=3, phase="forward", step=2, now=5.0)
    assert look(watch, 12.9, start=5.1, beats={"w0": (3, "forward", 2)}) == []
    assert look(watch, 13.2, start=13.0, beats={"w0": (3, "forward", 2)}) == [("w0", "stalled")]


def test_heartbeats_without_progress_are_a_stall():
    watch = FailureDetector(stall_timeout_s=5)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=0, now=0.0)
    watch.beat("w0", generation=1, moves=2, phase="committed", step=1, now=0.1)
    assert look(watch, 5.0, start=0.2, beats={"w0": (3, "forward", 1)}) == []
    assert look(watch, 5.4, start=5.1, beats={"w0": (3, "forward", 1)})[0] == ("w0", "stalled")


def test_waiting_for_others_evaluation_and_the_first_step_have_no_deadline():
    watch = FailureDetector(stall_timeout_s=1)
    assert look(watch, 5, beats={"w0": (1, "forward", 0)}) == []
    watch.beat("w0", generation=1, moves=1, phase="forward", step=0, now=5.0)
    watch.beat("w0", generation=1, moves=2, phase="committed", step=1, now=5.1)
    waiting = {"a": (1, "exchange", 1), "b": (1, "evaluate", 1), "c": (1, "parked", 1)}
    assert look(watch, 20, start=5.2, beats={**waiting, "w0": (3, "exchange", 1)}) == []


def test_where_all_wait_for_each_other_the_youngest_worker_goes_after_the_policys_time():
    watch = FailureDetector(stall_timeout_s=5)
    names = ("s0", "w2", "w10")
    for worker in names:
        watch.beat(worker, generation=1, moves=1, phase="forward", step=0, now=0.0)
        watch.beat(worker, generation=1, moves=2, phase="committed", step=1, now=0.1)
    waiting = dict.fromkeys(names, (3, "exchange", 1))
    assert look(watch, 5.0, start=0.2, beats=waiting) == []
    assert look(watch, 5.5, start=5.1, beats=waiting | {"w2": (3, "forward", 1)}) == [("w2", "stalled")]
    watch = FailureDetector(stall_timeout_s=5)
    for worker in names:
        watch.beat(worker, generation=1, moves=1, phase="forward", step=0, now=0.0)
        watch.beat(worker, generation=1, moves=2, phase="committed", step=1, now=0.1)
    assert look(watch, 5.3, start=0.2, beats=waiting) == [("w10", "unheard")]


def test_a_supervisor_that_did_not_run_itself_evicts_nobody():
    watch = FailureDetector(stall_timeout_s=300)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=1, now=0.0)
    assert verdicts(watch, 0.1) == []
    assert verdicts(watch, 9.0) == []
    assert verdicts(watch, 9.1) == []


def test_a_worker_that_never_beats_is_given_up():
    watch = FailureDetector(stall_timeout_s=300)
    watch.expect("w0", 0.0)
    assert look(watch, 119.9) == []
    assert look(watch, 120.2, start=120.0) == [("w0", "frozen")]


def test_patience_grows_with_the_pace_and_is_long_before_the_first_step():
    watch = FailureDetector(stall_timeout_s=300)
    assert watch.patience_s() == 120
    watch.beat("w0", generation=1, moves=1, phase="forward", step=0, now=0.0)
    watch.beat("w0", generation=1, moves=2, phase="committed", step=10, now=0.2)
    assert watch.patience_s() == 4.0
    watch.beat("w0", generation=1, moves=3, phase="committed", step=11, now=2.2)
    assert watch.patience_s() == 40.0


def test_the_first_step_of_a_new_generation_is_no_stall():
    watch = FailureDetector(stall_timeout_s=1)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=0, now=0.0)
    watch.beat("w0", generation=1, moves=2, phase="committed", step=1, now=0.1)
    watch.beat("w0", generation=2, moves=3, phase="seated", step=1, now=0.2)
    watch.beat("w0", generation=2, moves=4, phase="forward", step=9, now=0.3)
    assert watch.patience_s() == 4.0, "a healed worker's jump is no pace"
    for tick in range(4, 100):
        watch.beat("w0", generation=2, moves=4, phase="forward", step=9, now=tick / 10)
        assert verdicts(watch, tick / 10) == []
    watch.beat("w0", generation=2, moves=5, phase="committed", step=10, now=10.0)
    watch.beat("w0", generation=2, moves=6, phase="forward", step=10, now=10.1)
    verdicts(watch, 10.2)
    watch.beat("w0", generation=2, moves=6, phase="forward", step=10, now=11.2)
    assert verdicts(watch, 11.2) == [("w0", "stalled")]


def test_who_evaluates_or_is_in_a_first_step_is_not_hurried_to_park_and_a_while_after_neither():
    watch = FailureDetector(stall_timeout_s=1)
    watch.beat("a", generation=1, moves=1, phase="forward", step=0, now=0.0)
    watch.beat("b", generation=1, moves=1, phase="exchange", step=0, now=0.0)
    assert watch.unhurried(0.1) == {"a"}
    watch.beat("a", generation=1, moves=2, phase="committed", step=1, now=0.2)
    watch.beat("a", generation=1, moves=3, phase="evaluate", step=1, now=1.0)
    assert watch.patience_s() == 4.0
    watch.beat("a", generation=1, moves=4, phase="exchange", step=1, now=2.0)
    assert watch.unhurried(4.9) == {"a"}
    assert watch.unhurried(5.1) == frozenset()


def test_who_leaves_its_weights_behind_is_not_hurried_to_park():
    watch = FailureDetector(stall_timeout_s=1)
    watch.beat("w0", generation=1, moves=1, phase="forward", step=0, now=0.0)
    watch.beat("w0", generation=1, moves=2, phase="committed", step=1, now=0.1)
    assert look(watch, 20, start=5.0, beats={"w0": (3, "finish", 1)}) == []
    assert watch.unhurried(20.1) == {"w0"}


def proven(*workers: str, stall_timeout_s: float = 5) -> FailureDetector:
    """A watch that has seen these commit a step."""
    watch = FailureDetector(stall_timeout_s=stall_timeout_s)
    for worker in workers:
        watch.beat(worker, generation=1, moves=1, phase="forward", step=0, now=0.0)
        watch.beat(worker, generation=1, moves=2, phase="committed", step=1, now=0.1)
    return watch


@pytest.mark.parametrize("waiting", ["exchange", "evaluate", "finish"])
@pytest.mark.parametrize("phase", ["update", "between"])
def test_whose_own_code_hangs_while_another_worker_waits_for_it_is_stalled(phase: str, waiting: str) -> None:
    watch = proven("w0", "w1")
    beats = {"w0": (3, phase, 1), "w1": (3, waiting, 1)}
    assert look(watch, 2.0, start=0.2, beats=beats) == []
    assert [(stall.worker, stall.phase) for stall in watch.stalls(2.1)] == [("w0", phase)]
    assert look(watch, 5.1, start=2.1, beats=beats) == []
    assert look(watch, 5.3, start=5.2, beats=beats) == [("w0", "stalled")]


@pytest.mark.parametrize("phase", ["update", "between"])
def test_own_code_that_takes_long_on_all_workers_is_no_stall(phase: str) -> None:
    """Servers wait all the while; the first worker that is through does so for as long as a stall takes."""
    watch = proven("s0", "w1", "w2")
    beats = {"s0": (3, "exchange", 1), "w1": (3, phase, 1), "w2": (3, phase, 1)}
    assert look(watch, 20.0, start=0.2, beats=beats) == []
    assert watch.stalls(20.0) == []
    beats["w1"] = (4, "exchange", 1)
    assert look(watch, 25.0, start=20.1, beats=beats) == []
    assert look(watch, 25.2, start=25.1, beats=beats) == [("w2", "stalled")]


def test_a_server_that_hangs_in_its_update_is_stalled_and_nobody_who_waits_for_it() -> None:
    watch = proven("s0", "w1", "w2")
    beats = {"s0": (3, "update", 1), "w1": (3, "exchange", 1), "w2": (3, "exchange", 1)}
    assert look(watch, 5.3, start=0.2, beats=beats) == [("s0", "stalled")]


def test_a_worker_that_is_alone_takes_its_time_between_two_calls() -> None:
    watch = proven("s0", "w1")
    assert look(watch, 20.0, start=0.2, beats={"s0": (3, "exchange", 1), "w1": (3, "between", 1)}) == []


def test_who_is_in_its_own_code_is_not_hurried_to_park_until_those_who_have_wait_too_long() -> None:
    watch = proven("w0", "w1")
    beats = {"w0": (3, "between", 1), "w1": (3, "parked", 1)}
    assert look(watch, 5.1, start=0.2, beats=beats) == []
    assert "w0" in watch.unhurried(5.1)
    assert look(watch, 5.3, start=5.2, beats=beats) == [("w0", "stalled")]
