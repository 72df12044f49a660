"""Processes that join a running group: nobody waits for a transfer, and the bits are the same."""

from functools import partial
from pathlib import Path

from cast import Cast
from faults import FaultPlan
from joining import check, healed, spec, train, undisturbed


def test_processes_that_join_while_the_group_goes_on_end_with_the_same_bits(tmp_path: Path):
    cues = FaultPlan().resize(at_step=2, minimum=4, maximum=4).dawdle("w0", from_step=3, for_generation=2)
    cues = cues.resize(at_step=50, minimum=2, maximum=2).hold("w0", at_step=52, for_generation=3)
    cues = cues.resize(at_step=55, minimum=3, maximum=3).dawdle("w0", from_step=56, for_generation=4)
    function = partial(train, dropout=0.3)
    play = Cast(spec((1, 1)), function, cues, artifacts=tmp_path, shadows=True).play()
    check(play)
    assert play.worlds == [1, 4, 2, 3]
    assert healed(play) == set()
    assert sorted(play.levels) == ["w1", "w2", "w3", "w4"]
    assert play.digest == undisturbed(tmp_path, dropout=0.3)
