"""A job's metrics in Weights & Biases: each settled step once, however often they are sent."""

import json
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import RESULT, FakeCluster, Stage, connected, metric, outcome, stage
from waiting import wait_for

from ringleader.cli.main import main
from ringleader.client import wandb_run
from ringleader.client.job import Job

HEAD, BLOCK, FRAME = 7, 32 << 10, 7


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path / "home", FakeCluster(16))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where W&B writes the files of runs that it does not send."""
    pytest.importorskip("wandb", reason="wandb is not installed: tests/README.md says how")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return tmp_path / "wandb"


class SentRun:
    """A run that has taken everything before `step`."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.rows.append((step, values))


def records(file: Path) -> Iterator[Any]:
    """The records of a run's file, which has the format of LevelDB's log behind a head of its own."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, whole = file.read_bytes(), HEAD, b""
    while at < len(content):
        if BLOCK - at % BLOCK < FRAME:
            at += BLOCK - at % BLOCK
            continue
        if at + FRAME > len(content):
            return
        _, length, kind = struct.unpack("<IHB", content[at : at + FRAME])
        whole += content[at + FRAME : at + FRAME + length]
        at += FRAME + length
        if kind in (1, 4):  # whole, or its last part
            yield Record.FromString(whole)
            whole = b""


def history(file: Path) -> dict[int, dict[str, float]]:
    """The values of each step; a step that is there twice is an error."""
    found: dict[int, dict[str, float]] = {}
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            items = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
            assert items["_step"] not in found
            found[items["_step"]] = {name: value for name, value in items.items() if name[0] != "_"}
    return found


def whole(folder: Path, *, beside: Path | None = None) -> Path:
    """The file of the only run there, or of the other one, with its end: a process of W&B's own writes it."""

    def ended() -> Path | None:
        files = [file for file in folder.glob("offline-run-*/*.wandb") if file != beside]
        return next(
            (f for f in files if any(r.WhichOneof("record_type") == "exit" for r in records(f))), None
        )

    found = wait_for("the end of the run's file", ended, 60)
    assert found is not None
    return found


def test_each_settled_step_is_sent_once_with_its_values_and_no_credential(
    here: Stage, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = here.running(
        env={"WORD": "hidden"}, params={"data": "s3://me:hidden@place/rows", "lr": 0.1}, labels={"team": "a"}
    )
    settled = [metric(n, step, loss=step / 8) for n, step in enumerate((1, 2, 5), 1)]
    here.post(job_id, records=[*settled, metric(4, 6, **{"loss": 0.5, "a,b": 7.0, "score": None})])
    export = ["export", job_id, "--wandb", "team/vision"]
    assert main(export, connect=lambda: connected(here)) == 0
    first = whole(folder)
    assert str(first.parent) in capsys.readouterr().out
    expected = {1: {"loss": 0.125}, 2: {"loss": 0.25}, 5: {"loss": 0.625}, 6: {"loss": 0.5, "a,b": 7.0}}
    assert history(first) == expected
    content = first.read_bytes()
    assert b"hidden" not in content
    assert b"s3://" in content
    (run,) = [r.run for r in records(first) if r.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.entity, run.project, list(run.tags)) == (job_id, "team", "vision", ["team=a"])
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick(2)
    assert main(export, connect=lambda: connected(here)) == 0
    again = whole(folder, beside=first)
    assert history(again) == expected
    assert RESULT["weights_sha256"].encode() in again.read_bytes()


def test_a_run_goes_on_behind_the_steps_that_it_has_and_follows_the_job_to_its_end(here: Stage) -> None:
    job_id = here.running()
    here.post(job_id, records=[metric(n, n, loss=float(n)) for n in range(1, 5)])
    job, run = connected(here).job(job_id), SentRun(step=3)
    sending = threading.Thread(target=wandb_run.bring_up, args=(job, run), kwargs={"every_s": 0.02})
    sending.start()
    wait_for("what is settled", lambda: [step for step, _ in run.rows] == [3, 4])
    here.post(job_id, records=[metric(5, 5, loss=5.0)])
    wait_for("the next step", lambda: [step for step, _ in run.rows] == [3, 4, 5])
    here.post(job_id, records=[metric(6, 6, loss=6.0), outcome(1, "succeeded", result=RESULT)])
    here.tick(2)
    sending.join(30)
    assert not sending.is_alive()
    assert [(step, values["loss"]) for step, values in run.rows] == [(n, float(n)) for n in range(3, 7)]
    assert run.summary["ringleader.state"] == "succeeded"


def test_steps_that_no_request_holds_at_once_come_in_order_and_whole(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_run, "STEPS_AT_ONCE", 7)
    job_id = here.running()
    here.post(job_id, records=[metric(n, 3 * n, loss=float(n)) for n in range(1, 30)])
    run = SentRun(step=0)
    wandb_run.bring_up(connected(here).job(job_id), run)
    assert [(step, values["loss"]) for step, values in run.rows] == [(3 * n, float(n)) for n in range(1, 30)]


def test_without_the_package_or_with_two_aims_the_command_says_what_to_do(
    here: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    job_id = here.running()
    assert main(["export", job_id, "--wandb", "vision"], connect=lambda: connected(here)) == 1
    assert "ringleader[wandb]" in capsys.readouterr().err
    assert main(["export", job_id, "--out", "x", "--follow"], connect=lambda: connected(here)) == 2
    assert "--follow goes with --wandb" in capsys.readouterr().err
    with pytest.raises(wandb_run.WandbMissing):
        Job(connected(here).job(job_id)._api, connected(here).job(job_id).view).wandb()
