"""When everybody is lost, the next attempt goes on from the newest good checkpoint, and ends with the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast, FaultPlan, Play
from test_group_faults import STEPS, job, train

from ringleader.checkpoint.folder import MANIFEST, Folder
from ringleader.train.local import run_local

EVERY = 4
SAVED = "checkpoints"
NO_FAULTS = FaultPlan()
MODES: dict[str, dict[str, Any]] = {
    "ring": {},
    "one-server": {"sync": "parameter_server"},
    "two-servers": {
        "sync": {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2}
    },
    "copies": {"sync": {"intra_node": "parameter_server", "inter_node": "ring", "servers": 2}},
    "rounds": {"sync": {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2}},
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def saving_job(**changes: Any) -> Any:
    return job(checkpoint={"every_steps": EVERY, "keep": 3}, **changes)


def cast(spec: Any, place: Path, cues: FaultPlan = NO_FAULTS, *, attempt: int = 1) -> Cast:
    return Cast(spec, train, cues, place / "artifacts", attempt=attempt, checkpoints=str(place / SAVED))


def killed_at(step: int, spec: Any, place: Path) -> Play:
    """An attempt whose members all die there."""
    cues = FaultPlan()
    for name in ("s0", "s1", "w0", "w1", "w2", "w3", "w4"):
        cues = cues.kill(name, at_step=step)
    play = cast(spec, place, cues).play()
    assert (play.outcome, play.finished) == ("failed", {})
    return play


def restarted(spec: Any, place: Path) -> Play:
    return cast(spec, place, attempt=2).play()


@every_mode
def test_a_job_that_lost_everybody_ends_with_the_same_bits(mode: dict[str, Any], tmp_path: Path) -> None:
    spec = saving_job(workers={"min": 2, "max": 2}, **mode)
    undisturbed, _ = run_local(spec, train, tmp_path / "alone")
    first = killed_at(10, spec, tmp_path)
    steps = [c.manifest.position.step for c in first.checkpoints]
    assert steps == ([4, 9] if mode is MODES["rounds"] else [4, 8])
    second = restarted(spec, tmp_path)
    assert second.outcome == "succeeded"
    assert second.digest == undisturbed.digest
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [steps[-1]]
    assert max(step for step, _ in second.values) == STEPS


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_a_checkpoint_is_read_at_any_world_size(workers: int, tmp_path: Path) -> None:
    spec = saving_job(workers={"min": 2, "max": 2})
    undisturbed, _ = run_local(spec, train, tmp_path / "alone")
    killed_at(10, spec, tmp_path)
    other = saving_job(workers={"min": workers, "max": workers})
    assert restarted(other, tmp_path).digest == undisturbed.digest


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    spec = saving_job(workers={"min": 2, "max": 2})
    undisturbed, _ = run_local(spec, train, tmp_path / "alone")
    killed_at(10, spec, tmp_path)
    newest = tmp_path / SAVED / Folder(str(tmp_path / SAVED)).names()[0]
    torn = next(newest.glob("*.safetensors"))
    torn.write_bytes(torn.read_bytes()[:-7])
    second = restarted(spec, tmp_path)
    assert second.digest == undisturbed.digest
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [4]
    (skipped,) = second.reported("checkpoint.skipped")
    assert torn.name in skipped["why"]


def test_a_kill_costs_no_checkpoint_that_is_due_later(tmp_path: Path) -> None:
    spec = saving_job(workers={"min": 1, "max": 2})
    undisturbed, _ = run_local(spec, train, tmp_path / "alone")
    play = cast(spec, tmp_path, FaultPlan().kill("w1", at_step=6)).play()
    assert play.digest == undisturbed.digest
    assert [c.manifest.position.step for c in play.checkpoints] == [4, 8, 12]


def test_only_settled_steps_become_checkpoints(tmp_path: Path) -> None:
    """All die in the step after the one that was copied, before anybody has its gradients."""
    spec = saving_job(workers={"min": 2, "max": 2})
    play = killed_at(EVERY, spec, tmp_path)
    assert play.checkpoints == []
    assert not list(tmp_path.glob(f"{SAVED}/*/{MANIFEST}"))


def test_the_last_checkpoints_are_kept_by_count(tmp_path: Path) -> None:
    spec = job(checkpoint={"every_steps": 2, "keep": 2}, workers={"min": 2, "max": 2})
    play = cast(spec, tmp_path).play()
    assert play.outcome == "succeeded"
    names = Folder(str(tmp_path / SAVED)).names()
    assert names == [c.manifest.position.name for c in reversed(play.checkpoints[-2:])]
    assert sorted(p.name for p in (tmp_path / SAVED).iterdir()) == sorted(names)
