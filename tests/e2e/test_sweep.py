"""A sweep on the whole stack: losers are paused at their rung, the winner has the bits of a run alone, and what is
killed on the way changes nothing of either."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pace
import pytest
from waiting import wait_for
from whole_stack import Running

from ringleader.client import Job, Sweep
from ringleader.wire.states import State
from ringleader.wire.sweeps import TrialView

GATED = Path(__file__).parent / "gated"
DEADLINE_S = 240
RUNGS = (10, 20)
LR = (0.3, 0.1, 0.001)


def judged(one: TrialView) -> bool:
    """Whether the trial has reached the first rung, and was paused there or promoted."""
    return bool(one.scores) and (one.state == "paused" or one.rung > 0)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_the_winner_of_a_sweep_is_that_of_its_trials_alone_to_the_bit(stack: Running, tmp_path: Path) -> None:
    for file in (GATED / "gated.py", Path(pace.__file__)):
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


WORKERS = 2
EPOCHS, STEPS = 3, 69
BEFORE, LATER = 2, (20, 50)
"""The steps of a gate at which a trial can be killed before it is judged, and of the rungs."""
FALLING = (0.3, 0.1, 0.01, 0.003, 0.001, 0.0003)
"""The two best rates first. Whoever comes to a rung first, the same are promoted: of any three that can be the first at
the first rung the best is one of the two, and all six have two places behind it."""

Digests = dict[float, dict[int, str]]


@dataclass(frozen=True)
class Swept:
    """The end of a sweep.

    Attributes:
        table: of each trial its number, state, rung and scores.
        weights: the digest of the weights by rate and step.
    """

    winner: int | None
    table: list[tuple[int, str, int, list[float]]]
    jobs: list[Job]
    weights: Digests


class GatedSweep:
    """Six trials of at most two workers each, two at once, whose steps wait at gates."""

    def __init__(self, stack: Running, folder: Path) -> None:
        folder.mkdir()
        for file in (*GATED.glob("*.py"), Path(pace.__file__)):
            shutil.copy(file, folder)
        self._client, self._notes = stack.client, folder / "notes"
        self._notes.mkdir()
        self._params = {
            "epochs": EPOCHS,
            "gates": pace.gates(folder, BEFORE, *LATER),
            "notes": str(self._notes),
        }
        template = {
            "entrypoint": "noted:train",
            "working_dir": str(folder),
            "params": self._params,
            "workers": {"min": 1, "max": WORKERS, "cpus": 0.5},  # so that all four fit beside two that leave
            "batch": {"global_size": 64},
        }
        self.sweep: Sweep = stack.client.sweep(
            {
                "name": folder.name,
                "template": template,
                "space": {"params.lr": {"values": list(FALLING)}},
                "method": "grid",
                "metric": {"name": "loss"},
                "parallel": 2,
                "promotion": {"asha": {"rungs": list(LATER)}},
            }
        )

    def open_gate(self, step: int) -> None:
        pace.open_gate(self._params, step)

    def job(self, fits: Callable[[TrialView, Job], bool]) -> Job | None:
        """The job of a trial that is like that."""
        found = ((one, self._client.job(one.job)) for one in self.sweep.trials() if one.job)
        return next((job for one, job in found if fits(one, job)), None)

    def to_the_end(self) -> Swept:
        """Open the gates behind the first one as the trials are judged."""
        wait_for("all judged at the first rung", lambda: all(map(judged, self.sweep.trials())), DEADLINE_S)
        self.open_gate(LATER[0])
        wait_for("one behind the second, the others paused", self._decided, DEADLINE_S)
        self.open_gate(LATER[1])
        self.sweep.wait(DEADLINE_S)
        wait_for("the losers' end", lambda: all(one.state.ended for one in self.sweep.trials()), DEADLINE_S)
        trials = self.sweep.trials()
        return Swept(
            self.sweep.view.best,
            [(one.number, one.state, one.rung, one.scores) for one in trials],
            [self._client.job(str(one.job)) for one in trials],
            self._digests(),
        )

    def _decided(self) -> bool:
        trials = self.sweep.trials()
        return trials[0].rung == 2 and all(one.state == "paused" for one in trials[1:])

    def _digests(self) -> Digests:
        found: Digests = {rate: {} for rate in FALLING}
        noted: Counter[tuple[float, int]] = Counter()
        for file in self._notes.iterdir():
            rate = float(file.name.rpartition("-")[0])
            for step, digest in map(str.split, file.read_text().splitlines()):
                assert found[rate].setdefault(int(step), digest) == digest, (
                    "all members have the same weights"
                )
                noted[rate, int(step)] += 1
        assert max(noted.values()) <= WORKERS, "by each worker once"
        return found


def computed_once(job: Job) -> bool:
    """Whether no step of the job was taken back or computed again."""
    steps = [point.step for point in job.metrics("loss", max_points=10_000)]
    again = sum(event.data.get("steps_lost", 0) for event in job.events()) + job.view.totals.steps_lost
    return steps == list(range(1, job.view.progress.step + 1)) and again == job.view.failures.spent == 0


@pytest.mark.timeout(4 * DEADLINE_S)
def test_a_worker_and_a_supervisor_that_are_killed_change_no_rung_no_winner_and_no_bit_of_a_sweep(
    stack: Running, tmp_path: Path
) -> None:
    quiet = GatedSweep(stack, tmp_path / "undisturbed")
    quiet.open_gate(BEFORE)
    undisturbed = quiet.to_the_end()

    loud = GatedSweep(stack, tmp_path / "disturbed")
    struck = wait_for(
        "a trial of two workers",
        lambda: loud.job(
            lambda trial, job: job.view.world_size == WORKERS and job.view.progress.step >= BEFORE
        ),
        DEADLINE_S,
    )
    os.kill(next(worker.pid for worker in struck.workers() if worker.rank == 1), signal.SIGKILL)
    wait_for("recovery", lambda: of_type(struck, "recovered"), DEADLINE_S)
    loud.open_gate(BEFORE)
    orphan = wait_for(
        "a promoted trial at work",
        lambda: loud.job(lambda trial, job: trial.rung == 1 and job.state is State.RUNNING),
        DEADLINE_S,
    )
    orphan.inject("supervisor")
    wait_for("its supervisor", lambda: of_type(orphan, "supervisor.returned"), DEADLINE_S)
    disturbed = loud.to_the_end()

    assert disturbed.winner == undisturbed.winner
    assert disturbed.table == undisturbed.table
    assert sorted((state, rung) for _, state, rung, _ in disturbed.table) == [
        *[("cancelled", 0)] * 4, ("cancelled", 1), ("succeeded", 2),
    ]  # fmt: skip
    assert [job.id for job in disturbed.jobs if of_type(job, "worker.lost")] == [struck.id]
    assert [job.id for job in disturbed.jobs if of_type(job, "supervisor.returned")] == [orphan.id]
    assert all(map(computed_once, [*undisturbed.jobs, *disturbed.jobs]))
    for (_, _, rung, _), rate in zip(sorted(disturbed.table), FALLING, strict=True):
        ours, theirs = disturbed.weights[rate], undisturbed.weights[rate]
        both = ours.keys() & theirs.keys()
        assert both >= set(range(1, [*LATER, STEPS][rung] + 1)), f"of {rate}"
        assert {step for step in both if ours[step] != theirs[step]} == set(), f"of {rate}"


def of_type(job: Job, kind: str) -> list[Any]:
    return [event for event in job.events() if event.type == kind]
