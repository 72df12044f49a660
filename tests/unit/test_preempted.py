"""An attempt that stops because machines go away, among threads, and the one that goes on from what it has saved."""

from pathlib import Path

import torch
from cast import FaultPlan, Play
from joining import STEPS, spec, train, undisturbed
from threaded_cast import ThreadedCast


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
    assert second.digest == undisturbed(tmp_path)
