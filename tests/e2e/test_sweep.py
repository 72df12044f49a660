"""A sweep on the whole stack: losers are paused at their rung, and the winner has the bits of a run alone."""

import shutil
from pathlib import Path
from typing import Any

import pace
import pytest
from waiting import wait_for
from whole_stack import Running

from ringleader.wire.sweeps import TrialView

DEADLINE_S = 240
RUNGS = (10, 20)
LR = (0.3, 0.1, 0.001)


def judged(one: TrialView) -> bool:
    """Whether the trial has reached the first rung, and was paused there or promoted."""
    return bool(one.scores) and (one.state == "paused" or one.rung > 0)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_winner_of_a_sweep_is_that_of_its_trials_alone_to_the_bit(stack: Running, tmp_path: Path) -> None:
    for file in (Path(__file__).parent / "gated" / "gated.py", Path(pace.__file__)):
        shutil.copy(file, tmp_path)
    # Behind each rung the steps take their time, until the gate is opened: a trial stays where it is to be judged.
    gates = pace.gates(tmp_path, *RUNGS)
    template: dict[str, Any] = {
        "entrypoint": "gated:train",
        "working_dir": str(tmp_path),
        "params": {"epochs": 2, "gates": gates},
        "batch": {"global_size": 64},
    }
    sweep = stack.client.sweep(
        {
            "name": "tiny",
            "template": template,
            "space": {"params.lr": {"values": list(LR)}},
            "method": "grid",
            "metric": {"name": "loss"},
            "parallel": 2,
            "promotion": {"asha": {"rungs": list(RUNGS)}},
        }
    )
    # Not before they are paused: behind an open gate the next steps take no time.
    wait_for("all judged at the first rung", lambda: all(map(judged, sweep.trials())), DEADLINE_S)
    pace.open_gate(template["params"], RUNGS[0])
    wait_for("one behind the second", lambda: max(one.rung for one in sweep.trials()) == 2, DEADLINE_S)
    pace.open_gate(template["params"], RUNGS[1])
    assert sweep.wait(timeout=DEADLINE_S).view.state == "succeeded"

    winner, *losers = sweep.trials()
    assert winner.number == sweep.view.best
    wait_for("the losers' end", lambda: all(one.state.ended for one in sweep.trials()), DEADLINE_S)
    assert [one.state for one in sweep.trials()[1:]] == ["cancelled", "cancelled"]
    assert [len(one.scores) for one in losers] == [1, 1]
    job = stack.client.job(str(winner.job))
    assert job.result is not None
    assert job.view.totals.steps_lost == 0, "no step was computed twice"
    alone = [
        stack.client.submit({**template, "name": f"alone-{n}", "params": {**template["params"], "lr": lr}})
        for n, lr in enumerate(LR)
    ]
    results = [one.wait(timeout=DEADLINE_S) for one in alone]
    curves = stack.client.curves([one.id for one in alone], "loss").curves
    at_rung = {one.job: one.values[one.steps.index(RUNGS[0])] for one in curves}
    assert min(range(3), key=lambda n: at_rung[alone[n].id] or 0.0) == winner.number
    assert job.result.weights_sha256 == results[winner.number].weights_sha256
