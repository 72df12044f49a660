"""Checkpoints that version 0.1 wrote are taken up by this one.

The folders in `checkpoints_of_0_1` were written by workers that paused behind step 8, before the engine's modules and
classes had their present names.
"""

import shutil
from pathlib import Path

import pytest
import torch
from faults import FaultPlan
from programs import PROGRAMS
from test_programs import job, played

from ringleader.train.local import run_local

WRITTEN = Path(__file__).with_name("checkpoints_of_0_1")
PROGRAM_OF = {
    "ring": "average_by_hand",
    "servers": "optimizer_state_kept_and_put_back",
    "local_sgd": "average_by_hand",
}


@pytest.mark.parametrize(("mode", "program"), PROGRAM_OF.items())
def test_a_job_goes_on_from_a_checkpoint_of_0_1(mode: str, program: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    (step,) = WRITTEN.joinpath(mode).iterdir()
    shutil.copytree(step, tmp_path / "saved" / step.name)
    play = played(program, job(mode, least=3, most=3), FaultPlan(), tmp_path, attempt=2)
    whole, _ = run_local(job(mode, least=1, most=3, saved_every=None), PROGRAMS[program], tmp_path / "whole")
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert min(step for step, _ in play.values) > 0
    (finished, *_) = play.finished.values()
    assert finished.steps == whole.steps
    # Not the same bits: those of another CPU may have been written.
    assert finished.loss == pytest.approx(whole.loss, rel=1e-3)
