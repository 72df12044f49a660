"""The cast of the other tests: what its workers say counts, however they end."""

import gc
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

from cast import Cast
from faults import FaultPlan
from test_leaving import RING, job, train
from threaded_cast import ThreadedCast

from ringleader.elastic import events as ev
from ringleader.elastic.membership import begin, handle
from ringleader.elastic.state import AttemptRules


def test_last_words_are_heard_though_their_speaker_can_be_told_nothing() -> None:
    # All raise at once: the first to be heard has the others interrupted, which have closed their ends by then.
    stage = Cast(job(RING), train)
    here, there = Pipe()
    stage._pipes = {"w0": here}
    rules = AttemptRules(attempt=1, shards=4, servers=0, copies=False, max_failures=3)
    stage._state, _ = begin(rules, workers_min=1, workers_max=1, now=time.monotonic())
    there.send(("raised", (3, 0, "boom")))
    there.close()
    stage._tell("w0", "interrupt", 1)
    assert stage._pipes["w0"].recv() == ("raised", (3, 0, "boom"))


def test_a_newcomer_is_heard_once_the_survivors_have_gone_on_without_it() -> None:
    stage = Cast(job(RING), train)
    stage._state, _ = begin(AttemptRules(attempt=1, shards=4), workers_min=1, workers_max=2, now=0.0)
    for event in (
        ev.Parked("w0", 1.0, ev.ParkReport(0, 0, 0, "")),
        ev.Parked("w1", 1.0, ev.ParkReport(0, 0, 0, "")),
        ev.Lost("w1", "killed", 2.0),
    ):
        assert not stage._too_early("w2")
        stage._state, _ = handle(stage._state, event)
    assert stage._too_early("w2"), "w0 has not noticed yet"
    stage._state, _ = handle(stage._state, ev.Parked("w0", 3.0, ev.ParkReport(1, 3, 3, "its exchange broke")))
    assert stage._state.plan is not None
    assert stage._state.plan.members == ("w0",)
    assert not stage._too_early("w2")


def test_a_play_of_threads_leaves_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    """Neither of members that wait for word, as those of a paused job do."""

    def left(name: str) -> set[threading.Thread | Path]:
        faults = FaultPlan().pause(at_step=2).linger("w0", since_step=2, for_generation=2)
        saved = str(tmp_path / name / "saved")
        stage = ThreadedCast(job(RING), train, faults, artifacts=tmp_path / name, checkpoints=saved)
        assert stage.play().outcome == "paused"
        return {*threading.enumerate(), *Path("/proc/self/fd").iterdir()}

    gc.collect()  # what others have left is not to go meanwhile
    first = left("first")  # after which what is loaded once is there
    assert left("second") <= first
