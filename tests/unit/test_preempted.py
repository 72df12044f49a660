"""An attempt that stops because machines go away, among threads, and the one that goes on from what it has saved."""

from dataclasses import replace
from pathlib import Path

import torch
from faults import FaultPlan
from joining import STEPS, spec, train, undisturbed
from play import Play
from threaded_cast import ThreadedCast

from ringleader.elastic import NOWHERE, AttemptRules, Meeting, Membership, Plan
from ringleader.elastic.state import PAUSE, Phase, WorkerState
from ringleader.runtime.messages import AttemptLaunch
from ringleader.spec import JobSpec


def attempt(number: int, cues: FaultPlan, folder: Path) -> Play:
    torch.set_num_threads(1)
    job, place = spec((2, 2), checkpoint={"every_steps": None}), str(folder / "checkpoints")
    return ThreadedCast(job, train, cues, folder / str(number), attempt=number, checkpoints=place).play()


def test_an_attempt_whose_machines_go_away_goes_on_elsewhere_with_the_same_bits(tmp_path: Path):
    first = attempt(1, FaultPlan().drain("w1", at_step=6), tmp_path)
    assert (first.outcome, first.reason) == ("preempted", "preempted")
    assert [plan.cause for plan in first.plans] == ["start", "pause"]
    assert first.reported("worker.lost") == []
    (saved,) = first.checkpoints
    second = attempt(2, FaultPlan(), tmp_path)
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert second.reported("checkpoint.restored")[0]["step"] == saved.manifest.position.step
    told = dict(first.values) | dict(second.values)
    assert sorted(told) == list(range(1, STEPS + 1))
    assert second.digest == undisturbed()


def test_the_end_waits_for_a_checkpoint_only_where_somebody_is_left_to_write_it(tmp_path: Path):
    from ringleader.runtime.supervisor.attempt import Attempt  # it loads Ray

    launch = AttemptLaunch(
        "job", 1, JobSpec.parse({"name": "a", "entrypoint": "m:f"}), None, "", "", tmp_path
    )
    attempt = Attempt(launch, Meeting)
    plan = Plan(1, 3, ("w0", "w1"), 0, 4, 7, (), 8, NOWHERE, PAUSE)
    there = tuple(WorkerState(name, "worker", Phase.PARKED, 0.0, generation=3) for name in plan.members)
    paused = Membership(AttemptRules(attempt=1, shards=4), 1, 2, workers=there, generation=3, plan=plan)
    found = []
    for state in (
        paused,
        paused.drop("w0"),
        paused.drop("w0").put(replace(there[1], phase=Phase.CONDEMNED)),
        paused.drop("w0").drop("w1"),
        replace(paused, plan=replace(plan, cause="lost")),
    ):
        attempt._state = state
        found.append(attempt.saving)
    assert found == [3, 3, 0, 0, 0]
