"""The cast of the other tests: what its workers say counts, however they end."""

import time
from multiprocessing import Pipe

from cast import Cast
from test_leaving import RING, job, train

from ringleader.elastic.membership import begin
from ringleader.elastic.state import Rules


def test_last_words_are_heard_though_their_speaker_can_be_told_nothing() -> None:
    # All raise at once: the first to be heard has the others interrupted, which have closed their ends by then.
    stage = Cast(job(RING), train)
    here, there = Pipe()
    stage._pipes = {"w0": here}
    rules = Rules(attempt=1, shards=4, servers=0, copies=False, max_failures=3)
    stage._state, _ = begin(rules, minimum=1, maximum=1, now=time.monotonic())
    there.send(("raised", (3, 0, "boom")))
    there.close()
    stage._tell("w0", "interrupt", 1)
    assert stage._pipes["w0"].recv() == ("raised", (3, 0, "boom"))
