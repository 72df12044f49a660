"""Checkpoints that version 0.1 wrote, before modules moved, are resumed with the bits of an undisturbed run.

`saved_by_0_1/MODE` holds the last checkpoint of two members that were paused.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from faults import FaultPlan
from test_programs import MODES, job, played, undisturbed

SAVED = Path(__file__).parent / "saved_by_0_1"
TABLE = [
    ("ring", "best_weights_kept", 8),
    ("servers", "optimizer_state_kept_and_put_back", 9),
    ("local_sgd", "plateau", 8),
    ("leased", "kept_schedule", 8),
    ("copies", "kept_history", 9),
    ("powersgd", "schedule_by_hand", 9),
    ("async", "schedule_by_hand", 8),
]
OTHERS: dict[str, dict[str, Any]] = {
    "powersgd": {"intra_node": "ring", "inter_node": "ring", "codec": "powersgd"},
    "async": {"intra_node": "parameter_server", "inter_node": "parameter_server", "consistency": "async"},
}
INEXACT = {"async", "powersgd"}
"""Modes whose bits depend on who was faster, or on the number of workers."""


@pytest.mark.parametrize(("mode", "name", "step"), TABLE)
def test_a_checkpoint_of_0_1_is_resumed(
    mode: str, name: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other, sync in OTHERS.items():
        monkeypatch.setitem(MODES, other, sync)
    shutil.copytree(SAVED / mode, tmp_path / "saved")
    play = played(name, job(mode, least=3, most=3), FaultPlan(), tmp_path, attempt=2)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [restored["step"] for restored in play.reported("checkpoint.restored")] == [step]
    assert {finished.reproducible_why for finished in play.finished.values()} == {""} or mode in INEXACT
    assert mode in INEXACT or play.digest == undisturbed(name, mode).digest
