"""When everybody is lost, the next attempt goes on from the newest good checkpoint, and ends with the same bits."""

import os
import select
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from play import Play
from prompter import HANG_GUARD_S
from test_group_faults import ADAM, EPOCHS, ROWS, STEPS, job, train

from ringleader.checkpoint.folder import MANIFEST, Folder
from ringleader.checkpoint.manifest import CheckpointPosition
from ringleader.train import Session
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
SERVERS = {"intra_node": "parameter_server", "inter_node": "parameter_server"}
LEASED: dict[str, dict[str, Any]] = {
    "async": SERVERS | {"consistency": "async"},
    "two-async": SERVERS | {"consistency": "async", "servers": 2},
    "ssp": SERVERS | {"consistency": "ssp", "staleness": 1},
    "backup": SERVERS | {"backup_workers": 1},
    "tokens": {"intra_node": "token_ring", "inter_node": "token_ring"},
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def saving_job(**changes: Any) -> Any:
    return job(checkpoint={"every_steps": EVERY, "every_s": None, "keep": 3}, **changes)


def cast(spec: Any, place: Path, cues: FaultPlan = NO_FAULTS, *, attempt: int = 1) -> Cast:
    return Cast(spec, train, cues, place / "artifacts", attempt=attempt, checkpoints=str(place / SAVED))


def killed_at(step: int, spec: Any, place: Path, phase: str = "forward", once: Path = Path()) -> Play:
    """An attempt whose members all die there, but not before a checkpoint is written."""
    cues = FaultPlan()
    for name in ("s0", "s1", "w0", "w1", "w2", "w3", "w4"):
        cues = cues.kill(name, at_step=step, phase=phase, once=once)
    play = cast(spec, place, cues).play()
    assert (play.outcome, play.finished) == ("failed", {})
    return play


def killed_behind(saved: int, spec: Any, place: Path) -> Play:
    """All die in a step behind the checkpoint of that step, which is there."""
    return killed_at(10, spec, place, once=place / SAVED / CheckpointPosition(saved, 0, 1, 1).name)


def rows_of(first: Play, second: Play) -> list[int]:
    """Settled rows of both attempts: the first one's up to the checkpoint that the second began with."""
    (start,) = [data["step"] for data in second.reported("checkpoint.restored")]
    before = [row for step, _, row in first.settled_rows() if step <= start]
    return sorted([*before, *(row for step, _, row in second.settled_rows() if step > start)])


def restarted(spec: Any, place: Path) -> Play:
    return cast(spec, place, attempt=2).play()


@every_mode
def test_a_job_that_lost_everybody_ends_with_the_same_bits(mode: dict[str, Any], tmp_path: Path) -> None:
    spec = saving_job(workers={"min": 2, "max": 2}, **mode)
    undisturbed, _ = run_local(spec, train, tmp_path / "alone")
    first = killed_behind(9 if mode is MODES["rounds"] else 8, spec, tmp_path)
    steps = [c.manifest.position.step for c in first.checkpoints]
    assert steps == ([4, 9] if mode is MODES["rounds"] else [4, 8])
    second = restarted(spec, tmp_path)
    assert second.outcome == "succeeded"
    assert second.digest == undisturbed.digest
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [steps[-1]]
    assert max(step for step, _ in second.values) == STEPS


@pytest.mark.parametrize(
    ("mode", "workers"), [("ring", 1), ("ring", 3), ("ring", 4), ("two-servers", 1), ("two-servers", 4)]
)
def test_a_checkpoint_is_read_at_any_world_size(mode: str, workers: int, tmp_path: Path) -> None:
    keys = MODES[mode] | ADAM
    spec = saving_job(workers={"min": 2, "max": 2}, **keys)
    undisturbed, _ = run_local(job(**ADAM), train, tmp_path / "alone")
    killed_behind(8, spec, tmp_path)
    other = saving_job(workers={"min": workers, "max": workers}, **keys)
    assert restarted(other, tmp_path).digest == undisturbed.digest


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    spec = saving_job(workers={"min": 2, "max": 2})
    undisturbed, _ = run_local(spec, train, tmp_path / "alone")
    killed_behind(8, spec, tmp_path)
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
    written = tmp_path / SAVED / CheckpointPosition(4, 0, 1, 1).name
    play = cast(spec, tmp_path, FaultPlan().kill("w1", at_step=6, once=written)).play()
    assert play.digest == undisturbed.digest
    made = [checkpoint.manifest.position for checkpoint in play.checkpoints]
    assert [position.step for position in made if not position.final] == [4, 8, 12]


class Padding:
    """A kept object that does not fit into a pipe, whoever writes how much of it."""

    def state_dict(self) -> dict[str, Any]:
        return {str(n): torch.zeros(30_000) for n in range(8)}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def train_padded(session: Session) -> None:
    session.keep("padding", Padding())
    train(session)


@pytest.mark.parametrize("victim", ["w0", "w1"])
def test_a_worker_killed_while_its_checkpoint_is_being_written_leaves_none_and_costs_no_bit(
    victim: str, tmp_path: Path
) -> None:
    """The file is a pipe that takes no more: who writes it waits in the middle, and goes with its worker."""
    spec = saving_job(workers={"min": 1, "max": 2})
    undisturbed, _ = run_local(spec, train_padded, tmp_path / "alone")
    torn = tmp_path / SAVED / CheckpointPosition(EVERY, EVERY, 1, 1).name
    torn.mkdir(parents=True)
    pipe, begun = torn / f"state-0-{1 + int(victim[1])}-of-2.safetensors", tmp_path / "begun"
    os.mkfifo(pipe)
    cues = FaultPlan().kill(victim, at_step=EVERY + 1, once=begun)
    for name in ("w0", "w1", "w2", "w3", "w4"):
        cues = cues.kill(name, at_step=10, once=tmp_path / SAVED)
    with ThreadPoolExecutor(1) as reader:
        written = reader.submit(drained, pipe, begun)
        first = replace(cast(spec, tmp_path, cues), train=train_padded).play()
        assert 0 < len(written.result(HANG_GUARD_S)) < 8 * 30_000 * 4 / 2
    assert [c.manifest.position.step for c in first.checkpoints] == [8]
    assert not torn.exists()
    second = replace(cast(spec, tmp_path, attempt=2), train=train_padded).play()
    assert second.digest == undisturbed.digest
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [8]
    assert rows_of(first, second) == sorted(list(range(ROWS)) * EPOCHS)


def drained(pipe: Path, begun: Path) -> bytes:
    """What came through the pipe until nobody held its other end any more; `begun` once there was something."""
    with pipe.open("rb", buffering=0) as file:
        first = file.read(1000)
        begun.touch()
        closed = select.poll()
        closed.register(file, 0)  # its other end
        assert closed.poll(HANG_GUARD_S * 1000)
        return first + file.read()


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


@pytest.mark.parametrize("sync", LEASED.values(), ids=list(LEASED))
def test_where_items_come_in_any_order_a_restart_goes_on_inside_the_loop_and_each_row_counts_once(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    spec = job(checkpoint={"every_steps": 2}, workers={"min": 2, "max": 2}, sync=sync)
    tokens = sync is LEASED["tokens"]  # its members may settle a whole loop at once
    first = killed_at(7 if tokens else 4, spec, tmp_path, phase="committed", once=tmp_path / SAVED)
    steps = [c.manifest.position.step for c in first.checkpoints]
    assert tokens or min(steps) in range(2, 5), "inside the first loop, which ends at step 5"
    second = restarted(spec, tmp_path)
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert second.digest
    assert rows_of(first, second) == sorted(list(range(ROWS)) * EPOCHS)
    assert max(step for step, _ in second.values) == STEPS


@pytest.mark.parametrize("mode", [*MODES, *LEASED])
def test_a_paused_job_goes_on_where_it_was(mode: str, tmp_path: Path) -> None:
    changes = MODES[mode] if mode in MODES else {"sync": LEASED[mode]}
    spec = job(checkpoint={"every_steps": None}, workers={"min": 2, "max": 2}, **changes)
    cues = FaultPlan().pause(at_step=6)
    for worker in ("w0", "w1", "w2", "w3"):
        cues = cues.dawdle(worker, from_step=6, for_generation=2)  # else the job may end before it has heard
    first = cast(spec, tmp_path, cues).play()
    assert (first.outcome, first.finished) == ("paused", {})
    (saved,) = first.checkpoints
    assert saved.manifest.position.step >= 6
    second = restarted(spec, tmp_path)
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert second.reported("checkpoint.restored")[0]["step"] == saved.manifest.position.step
    assert rows_of(first, second) == sorted(list(range(ROWS)) * EPOCHS)
    steps = {step for step, _ in first.values} | {step for step, _ in second.values}
    assert steps == set(range(1, STEPS + 1))
    if mode in MODES:
        undisturbed, _ = run_local(spec, train, tmp_path / "alone")
        assert second.digest == undisturbed.digest
