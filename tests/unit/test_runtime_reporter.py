"""What a heartbeat carries, and what makes it leave at once."""

import numpy as np

from ringleader.elastic import ParkReport
from ringleader.runtime.messages import ParkMessage, ProcessIdentity
from ringleader.runtime.worker.reporter import WorkerReporter
from ringleader.train.time_split import TimeSplit


def reporter() -> tuple[WorkerReporter, list[int]]:
    hurried: list[int] = []
    return WorkerReporter("w0", ProcessIdentity(1, "node", "127.0.0.1"), lambda: hurried.append(1)), hurried


def progress(reporter: WorkerReporter, step: int, phase: str) -> None:
    reporter.progress(step=step, total_steps=None, epoch=0, phase=phase, rows=1)


def test_records_leave_once_with_the_next_heartbeat():
    one, _ = reporter()
    one.metrics(3, 1, {"loss": 0.5})
    one.ledger(3, np.array([0, 1], np.int32), np.array([7, 8], np.int64))
    beat = one.beat()
    assert [m.step for m in beat.metrics] == [3]
    one.heard(1)
    assert np.frombuffer(beat.rows[0].rows, "<i8").tolist() == [7, 8]
    assert one.beat().metrics == ()


def test_the_first_work_and_the_first_commit_of_a_generation_are_told_at_once():
    one, hurried = reporter()
    one.enter(2)
    progress(one, 5, "forward")
    assert len(hurried) == 1
    progress(one, 5, "exchange")
    assert len(hurried) == 1
    progress(one, 6, "committed")
    assert len(hurried) == 2
    progress(one, 7, "committed")
    assert len(hurried) == 2


def test_what_is_recorded_never_goes_back():
    one, _ = reporter()
    one.heard(9)
    one.heard(4)
    assert one.recorded_step() == 9


def test_the_times_of_first_work_and_first_commit_are_told_once():
    one, _ = reporter()
    one.enter(2)
    progress(one, 5, "forward")
    progress(one, 6, "committed")
    beat = one.beat()
    assert beat.healed_ago_s >= beat.committed_ago_s >= 0
    one.heard(1)
    assert (one.beat().healed_ago_s, one.beat().committed_ago_s) == (None, None)


def test_what_was_not_heard_is_told_again_with_how_things_are_now_and_nothing_newer():
    one, _ = reporter()
    one.metrics(3, 1, {"loss": 0.5})
    first = one.beat()
    one.metrics(4, 1, {"loss": 0.4})
    progress(one, 5, "forward")
    again = one.beat()
    assert (again.number, again.step, again.metrics) == (first.number, 5, first.metrics)
    one.heard(4)
    then = one.beat()
    assert (then.number, [m.step for m in then.metrics]) == (first.number + 1, [4])


def test_who_parked_says_so_with_every_heartbeat_until_it_has_its_next_seat():
    one, _ = reporter()
    park_message = ParkMessage(
        "w0", ProcessIdentity(1, "node", "127.0.0.1"), ParkReport(1, 7, 7, "broken pipe")
    )
    one.park(park_message)
    assert [one.beat().park_message, one.beat().park_message] == [park_message, park_message]
    one.enter(2)
    assert one.beat().park_message is None


def test_records_are_handed_over_once_a_heartbeat_that_brings_them_was_heard():
    one, hurried = reporter()
    assert one.handed_over(0.0)
    one.metrics(3, 1, {"loss": 0.5})
    before = len(hurried)
    assert not one.handed_over(0.0)
    assert len(hurried) == before + 1
    assert one.beat().records
    assert not one.handed_over(0.0)
    one.event("checkpoint.failed", 1, {})
    one.heard(1)
    assert not one.handed_over(0.0), "what was told since is not in it"
    one.beat()
    one.heard(1)
    one.beat()
    assert one.handed_over(0.0), "a heartbeat that brings nothing need not be heard"


def test_every_heartbeat_says_what_became_of_the_time_since_the_function_was_called():
    one, _ = reporter()
    assert one.beat().spent is None, "it has not been called yet"
    now = [10.0]
    split = TimeSplit(now=lambda: now[0])
    one.timed(split)
    with split.idle():
        now[0] += 2.0
    now[0] += 3.0
    told = one.beat().spent
    assert told is not None
    assert (told.wall_s, told.idle_s, told.compute_s) == (5.0, 2.0, 3.0)
    now[0] += 1.0
    again = one.beat().spent
    assert again is not None
    assert again.wall_s == 6.0, "told again, but as it is now"
