"""Processes that join a running group: nobody waits for a transfer, and the bits are the same."""

from functools import partial
from pathlib import Path

from cast import Cast
from faults import FaultPlan
from joining import check, healed, spec, train, undisturbed


def test_processes_that_join_while_the_group_goes_on_end_with_the_same_bits(tmp_path: Path):
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=4, workers_max=4)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    cues = cues.resize(at_step=50, workers_min=2, workers_max=2).hold("w0", at_step=52, for_generation=3)
    cues = cues.resize(at_step=55, workers_min=3, workers_max=3).dawdle("w0", from_step=56, for_generation=4)
    function = partial(train, dropout=0.3)
    play = Cast(spec((1, 1)), function, cues, artifacts=tmp_path, joiners_follow=True).play()
    check(play)
    assert play.worlds == [1, 4, 2, 3]
    assert healed(play) == set()
    assert sorted(play.in_sync) == ["w1", "w2", "w3", "w4"]
    assert play.digest == undisturbed(dropout=0.3)
