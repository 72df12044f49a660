"""The end of a run: whoever is killed behind the last step, the weights file is there, and every step was told."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from faults import ANY, FaultPlan
from leasing import ASYNC, Nets
from leasing import check as check_leased
from leasing import job as leased
from membership_world import World
from prompter import HANG_GUARD_S
from safetensors.torch import load_file
from test_server_backups import DATA, NET, STEPS, check, lost
from test_worker_phases import Script, job
from threaded_cast import ThreadedCast
from torch.nn import functional as F
from waiting import wait_for

from ringleader.checkpoint.manifest import CheckpointPosition
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot
from ringleader.train import Session
from ringleader.train.generation.saving.saver import CheckpointSaver
from ringleader.train.local import run_local
from ringleader.train.run import WEIGHTS
from ringleader.train.state.fingerprints import weights_sha256

MOMENTS = {
    "before it writes": FaultPlan().kill("", at_step=STEPS, phase="finish", past=1),
    "before its last words are heard": FaultPlan().kill("", at_step=ANY, phase="handing over"),
    "before it is known to be gone": FaultPlan().kill("", at_step=ANY, phase="gone"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_local(job(), Script(), tmp_path_factory.mktemp("alone"))[0].digest


def scripted(moment: str, victim: str) -> FaultPlan:
    plan = MOMENTS[moment]
    return FaultPlan(tuple(replace(cue, worker=victim) for cue in plan.cues))


def left(folder: Path, *workers: str) -> dict[str, str]:
    """The digests of the weights files that these have written."""
    found = {}
    for worker in workers:
        path = folder / worker / WEIGHTS
        if path.exists():
            net = copy.deepcopy(NET)
            net.load_state_dict(load_file(path))
            found[worker] = weights_sha256(net)
    return found


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("sync", "first", "second"), [("ring", "w0", "w1"), ("parameter_server", "w1", "w2")]
)
def test_rank_0_killed_behind_the_last_step_leaves_the_weights_and_takes_no_step_along(
    sync: str, first: str, second: str, moment: str, alone: str, tmp_path: Path
) -> None:
    spec = job(sync=sync, workers={"min": 1, "max": 2})
    done = ThreadedCast(spec, Script(), scripted(moment, first), tmp_path).play()
    check(done, alone)
    assert list(done.finished) != []
    assert first not in done.finished
    files = left(tmp_path, first, second)
    assert set(files.values()) == {alone}
    assert (second in files) == (moment != "before it is known to be gone")
    assert "accuracy" in dict(done.values)[STEPS]


def recalibrated(session: Session) -> None:
    """Behind its last loop it runs the model once more: the buffers change, and no step says so."""
    net = session.model(copy.deepcopy(NET))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for x, y in session.batches(DATA):
        session.step(F.cross_entropy(net(x), y))
    net.train()
    net(DATA.tensors[0])


def test_the_weights_file_is_of_the_digest_also_where_it_is_written_twice(tmp_path: Path) -> None:
    faults = FaultPlan().kill("w1", at_step=ANY, phase="handing over")
    spec = job(workers={"min": 1, "max": 2})
    done = ThreadedCast(spec, recalibrated, faults, tmp_path).play()
    assert done.outcome == "succeeded", (done.reason, done.message)
    assert done.worlds == [2, 1]
    assert left(tmp_path, "w0", "w1") == {"w0": done.digest}


def test_the_server_that_speaks_killed_before_its_last_words_are_heard_is_stood_in_for(
    tmp_path: Path,
) -> None:
    """Where items are leased servers hold the records; the backup tells what is not stored."""
    nets, mode = Nets(), ASYNC | {"server_backups": 1}
    faults = FaultPlan().kill("s0", at_step=ANY, phase="handing over")
    done = ThreadedCast(leased(mode), nets, faults, tmp_path).play()
    check_leased(done, nets, mode)
    assert "s0" not in done.finished


def test_a_server_lost_behind_a_worker_that_has_gone_does_not_end_the_attempt() -> None:
    world = World.of(workers_min=2, workers_max=2, shards=8, servers=1)
    world.calm()
    world.commit()
    world.leave("w1")
    world.die("s0")
    world.hear()
    assert world.end is None
    world.calm()
    assert world.end is not None
    assert world.end.outcome == "succeeded"
    assert world.plan is not None
    assert world.plan.members == ("w2",)


def test_rank_0_that_waits_for_its_checkpoint_parks_when_another_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system hangs until the others have gone on without the lost one."""
    spec = job(workers={"min": 1, "max": 2}, checkpoint={"every_steps": STEPS})
    faults, uri = FaultPlan().kill("w1", at_step=ANY, phase="handing over"), (tmp_path / "kept").as_uri()
    stage = ThreadedCast(spec, Script(), faults, tmp_path, checkpoints=uri)
    write = CheckpointSaver._write

    def late(
        saver: CheckpointSaver,
        snapshot: Snapshot,
        part: CheckpointPart,
        position: CheckpointPosition,
        spare_s: float,
        *,
        settled: bool,
    ) -> None:
        if part.writer == 0:
            wait_for("the second plan", lambda: len(stage.formed) > 1, HANG_GUARD_S)
        write(saver, snapshot, part, position, spare_s, settled=settled)

    monkeypatch.setattr(CheckpointSaver, "_write", late)
    done = stage.play()
    assert done.outcome == "succeeded", (done.reason, done.message)
    assert lost(done) == ["w1"]
    assert list(done.finished) == ["w0"]
    assert [made.manifest.position.step for made in done.checkpoints] == [STEPS]
