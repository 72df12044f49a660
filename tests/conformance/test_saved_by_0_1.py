"""Checkpoints that version 0.1 wrote, before modules moved, are resumed with the bits of an undisturbed run.

`saved_by_0_1/MODE` holds the checkpoint of step 8 (on servers of step 9) of two members that were paused.
"""

import shutil
from pathlib import Path

import pytest
from faults import FaultPlan
from test_programs import job, played, undisturbed

SAVED = Path(__file__).parent / "saved_by_0_1"
PROGRAM_OF = {
    "ring": "best_weights_kept",
    "servers": "optimizer_state_kept_and_put_back",
    "local_sgd": "plateau",
    "leased": "kept_schedule",
}
STEPS = {"servers": 9}


@pytest.mark.parametrize("mode", PROGRAM_OF)
def test_a_checkpoint_of_0_1_is_resumed(mode: str, tmp_path: Path) -> None:
    shutil.copytree(SAVED / mode, tmp_path / "saved")
    name = PROGRAM_OF[mode]
    play = played(name, job(mode, least=3, most=3), FaultPlan(), tmp_path, attempt=2)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [restored["step"] for restored in play.reported("checkpoint.restored")] == [STEPS.get(mode, 8)]
    assert {finished.reproducible_why for finished in play.finished.values()} == {""}
    assert play.digest == undisturbed(name, mode).digest
