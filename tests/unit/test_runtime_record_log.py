"""The end of an attempt reaches the control plane whatever the training function and the disk leave behind."""

import math
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from integration.ray_home import IngestServer
from waiting import wait_for

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointPosition, CheckpointsUnreachable, Manifest, SavedPart
from ringleader.elastic.instructions import End
from ringleader.runtime.messages import (
    AttemptLaunch,
    Heartbeat,
    PrintedLine,
    ProcessIdentity,
    SettledMetrics,
    SettledRows,
    WorkerEvent,
    spool_of,
)
from ringleader.runtime.records.artifact_files import ArtifactFiles, ArtifactRefused
from ringleader.runtime.records.record_log import RecordLog
from ringleader.runtime.records.spool import Spool, unposted
from ringleader.runtime.records.uploader import Uploader
from ringleader.spec import JobSpec
from ringleader.wire.artifacts import MOST_BYTES, SavedArtifact

SUCCEEDED = End("succeeded")
HANG_GUARD_S = 60.0


@pytest.fixture
def server() -> Iterator[IngestServer]:
    server = IngestServer()
    yield server
    server.close()


def open_record_log(server: IngestServer, home: Path, attempt: int = 1, **debug: Any) -> RecordLog:
    launch = AttemptLaunch(
        job_id="job_a",
        attempt=attempt,
        spec=JobSpec.parse({"name": "a", "entrypoint": "m:f", "debug": debug}),
        package=None,
        ingest_url=server.url,
        ingest_token="secret",
        home=home,
    )
    return RecordLog(launch, lambda: None)


def finished(**changes: Any) -> dict[str, Any]:
    times = dict.fromkeys(("wall_s", "compute_s", "exposed_s", "idle_s", "recovery_s"), 0.0)
    return {
        "steps": 3,
        "samples": 24,
        "loss": 0.5,
        "scores": {},
        "generations": 1,
        "reproducible": True,
        "reproducible_why": "",
        "digest": "ab" * 32,
        **times,
        **changes,
    }


def test_a_score_that_is_no_number_is_left_out_and_named_in_the_log(server: IngestServer, tmp_path: Path):
    record_log = open_record_log(server, tmp_path)
    record_log.outcome(SUCCEEDED, finished(scores={"accuracy": 0.9, "bad": math.nan, "worse": -math.inf}))
    assert record_log.uploader.drained(60)
    told = server.outcome()
    assert told is not None
    assert (told["outcome"], told["result"]["scores"]) == ("succeeded", {"accuracy": 0.9})
    assert [line["line"] for line in server.stream("logs")] == [
        "The score 'bad' is nan and is left out of the result.",
        "The score 'worse' is -inf and is left out of the result.",
    ]
    record_log.discard()


def test_a_result_counts_gradients_by_how_stale_they_were(server: IngestServer, tmp_path: Path):
    record_log = open_record_log(server, tmp_path)
    record_log.outcome(SUCCEEDED, finished(staleness=[5, 0, 2]))
    assert record_log.uploader.drained(60)
    told = server.outcome()
    assert told is not None
    assert told["result"]["staleness"] == [5, 0, 2]
    record_log.discard()


def test_an_outcome_that_cannot_be_written_is_a_platform_error(server: IngestServer, tmp_path: Path):
    record_log = open_record_log(server, tmp_path)
    record_log.outcome(SUCCEEDED, finished(wall_s=math.nan))
    assert record_log.uploader.drained(60)
    assert_platform_error(server, "ValueError")
    record_log.discard()


def test_a_ledger_that_cannot_be_finished_is_a_platform_error(server: IngestServer, tmp_path: Path):
    record_log = open_record_log(server, tmp_path, ledger=True)
    (tmp_path / "jobs" / "job_a" / "artifacts").write_text("a file where the artifacts' folder should be")
    record_log.outcome(SUCCEEDED, finished())
    assert record_log.uploader.drained(60)
    assert_platform_error(server, "FileExistsError")
    record_log.discard()


def beat(number: int, steps: range, **changes: Any) -> Heartbeat:
    return Heartbeat(
        worker="w0",
        identity=ProcessIdentity(1, "node", "127.0.0.1"),
        generation=1,
        step=steps.stop,
        total_steps=None,
        epoch=0,
        phase="forward",
        moves=number,
        number=number,
        metrics=tuple(SettledMetrics(step, 1, {"loss": 0.5}) for step in steps),
        rows=tuple(SettledRows(step, b"\0" * 4, step.to_bytes(8, "little")) for step in steps),
        lines=(PrintedLine(0.0, "info", f"beat {number}"),),
        **changes,
    )


def test_what_a_killed_supervisor_had_answered_is_there_and_what_is_told_again_counts_once(
    server: IngestServer, tmp_path: Path
):
    server.away = True
    first = open_record_log(server, tmp_path, ledger=True, trace=True)
    first.beat(beat(1, range(1, 4)))
    first.event("worker.lost", 1, {})  # nobody was told that this is on disk
    assert (first.start, first.recorded_step) == (1, 4)
    second = open_record_log(server, tmp_path, ledger=True, trace=True)
    assert (second.start, second.recorded_step) == (2, 4)
    second.beat(beat(1, range(1, 4)))
    second.beat(beat(2, range(3, 6)))
    second.outcome(SUCCEEDED, finished())
    third = open_record_log(server, tmp_path, ledger=True, trace=True)
    assert third.over
    third.outcome(End("failed", "platform_error", "told again"), None)
    server.away = False
    assert third.uploader.drained(60)
    assert [m["step"] for m in server.stream("metrics")] == [1, 2, 3, 4, 5]
    assert [line["line"] for line in server.stream("logs")] == ["beat 1", "beat 2"]
    (told,) = server.stream("outcome")
    assert told["outcome"] == "succeeded"
    ledger = pq.read_table(told["result"]["ledger_uri"].removeprefix("file://"))
    assert ledger["row"].to_pylist() == [1, 2, 3, 4, 5]
    for record_log in (first, second, third):
        record_log.discard()
    assert not (tmp_path / "jobs" / "job_a" / "ledger").exists()


def saved(step: int, **changes: Any) -> SavedArtifact:
    plain = {"name": "net", "step": step, "kind": "text", "suffix": "txt", "content": b"hi"}
    return SavedArtifact(**plain | changes)


def test_an_artifact_is_written_and_told_of_once_however_often_it_comes(server: IngestServer, tmp_path: Path):
    folder = tmp_path / "jobs" / "job_a" / "artifacts"
    first = open_record_log(server, tmp_path)
    first.beat(beat(1, range(1, 3), artifacts=(saved(1),)))
    # Another worker speaks now, and does not know what was stored.
    first.beat(replace(beat(1, range(1, 4)), worker="w1", artifacts=(saved(1, content=b"other"), saved(2))))
    second = open_record_log(server, tmp_path)
    second.beat(beat(1, range(1, 3), artifacts=(saved(1),)))
    second.beat(replace(beat(2, range(4, 5)), worker="w1", artifacts=(saved(2), saved(3))))
    second.outcome(SUCCEEDED, finished())
    assert second.uploader.drained(60)
    told = server.events("artifact.saved")
    assert [(each["file"], each["step"], each["size_bytes"]) for each in told] == [
        (f"net-0000000{step}.txt", step, 2) for step in (1, 2, 3)
    ]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {e["file"]: b"hi" for e in told}
    for record_log in (first, second):
        record_log.discard()
    later = open_record_log(server, tmp_path, attempt=2)
    later.beat(beat(1, range(3, 5), artifacts=(saved(3), saved(4))))
    assert later.uploader.drained(60)
    assert [each["step"] for each in server.events("artifact.saved", attempt=2)] == [4]
    later.discard()


def test_what_is_no_artifact_is_refused_in_words_and_the_rest_is_taken(server: IngestServer, tmp_path: Path):
    record_log = open_record_log(server, tmp_path)
    strange = (
        saved(1, name="../../up"),
        saved(1, suffix="t/../../x"),
        saved(1, kind="code"),
        saved(1, suffix="html"),
        saved(1, kind="image", suffix="svg"),
        saved(1, content=b"a" * (MOST_BYTES + 1)),
    )
    record_log.beat(beat(1, range(1, 2), artifacts=(*strange, saved(1))))
    assert record_log.uploader.drained(60)
    assert [each["why"] for each in server.events("artifact.failed")] == [
        "a worker sent what is no artifact."
    ]
    kept = [path.name for path in tmp_path.rglob("*") if path.suffix in (".txt", ".html", ".svg")]
    assert kept == ["net-00000001.txt"]
    assert [m["step"] for m in server.stream("metrics")] == [1]
    record_log.discard()


def test_a_job_keeps_so_many_artifacts_and_no_more(tmp_path: Path):
    files = ArtifactFiles(tmp_path, most_files=2)
    files.write(saved(1))
    files.write(saved(2))
    with pytest.raises(ArtifactRefused, match="at most 2 artifacts"):
        files.write(saved(3))
    files.write(saved(2))  # it is there
    with pytest.raises(ArtifactRefused, match="of 0 MiB together"):
        ArtifactFiles(tmp_path, most_bytes=5).write(saved(3))
    with pytest.raises(ArtifactRefused, match="File exists"):
        ArtifactFiles(tmp_path / saved(1).file).write(saved(3))


def test_what_the_disk_did_not_take_is_not_acknowledged_and_counts_once_when_it_is_told_again(
    server: IngestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    record_log = open_record_log(server, tmp_path)
    with monkeypatch.context() as full:
        full.setattr(Spool, "_write", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="full"):
                record_log.beat(beat(1, range(1, 4)))
    record_log.beat(beat(1, range(1, 4)))
    record_log.outcome(SUCCEEDED, finished())
    assert record_log.uploader.drained(60)
    assert [m["step"] for m in server.stream("metrics")] == [1, 2, 3]
    assert [line["line"] for line in server.stream("logs")] == ["beat 1"]
    record_log.discard()


def refuse(_spool: Spool) -> None:
    raise sqlite3.OperationalError("full")


def test_a_checkpoint_whose_files_an_earlier_process_heard_of_becomes_one(
    server: IngestServer, tmp_path: Path
):
    position = CheckpointPosition(step=2, applied=2, attempt=1, generation=1)
    folder = Folder(f"{tmp_path / 'checkpoints'}/job_a")
    pieces = [folder.write(position.name, f"piece-{n}", bytes(n + 1)) for n in range(2)]
    saved = [SavedPart(position, n, 2, (piece,), copied_s=0.1) for n, piece in enumerate(pieces)]
    first = open_record_log(server, tmp_path)
    first.beat(beat(1, range(1, 2), saved=(saved[0],)))
    second = open_record_log(server, tmp_path)
    second.beat(beat(2, range(2, 5), saved=(saved[1],)))
    second.outcome(SUCCEEDED, finished())
    assert second.uploader.drained(60)
    (told,) = server.events("checkpoint.saved")
    assert (told["step"], folder.names()) == (2, [position.name])
    for record_log in (first, second):
        record_log.discard()


def test_a_place_that_did_not_answer_at_first_has_the_checkpoint_once_it_does(
    server: IngestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As S3, which is asked for the bucket's region before anything else."""
    positions = [CheckpointPosition(step, step, attempt=1, generation=1) for step in (2, 4)]
    folder = Folder(f"{tmp_path / 'checkpoints'}/job_a")
    pieces = [folder.write(position.name, "piece", b"x") for position in positions]
    saved = [SavedPart(at, 0, 1, (piece,), copied_s=0.1) for at, piece in zip(positions, pieces, strict=True)]
    record_log = open_record_log(server, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("ringleader.checkpoint.folder.Folder", unanswered)
        record_log.beat(beat(1, range(1, 4), saved=(saved[0],)))
        wait_for("the failure", lambda: server.events("checkpoint.failed"), HANG_GUARD_S)
    record_log.beat(beat(2, range(4, 7), saved=(saved[1],)))
    record_log.outcome(SUCCEEDED, finished())
    assert record_log.uploader.drained(60)
    assert "region" in server.events("checkpoint.failed")[0]["why"]
    assert folder.names()[0] == positions[1].name
    (told,) = server.stream("outcome")
    assert told["result"]["checkpoint_uri"].endswith(positions[1].name)
    record_log.discard()


def test_a_place_that_refuses_a_supervisor_while_it_comes_back_costs_it_no_later_checkpoint(
    server: IngestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = CheckpointPosition(step=2, applied=2, attempt=1, generation=1)
    pieces = [
        Folder(f"{tmp_path / 'checkpoints'}/job_a").write(at.name, f"piece-{n}", b"x") for n in range(2)
    ]
    saved = [SavedPart(at, n, 2, (piece,), copied_s=0.0) for n, piece in enumerate(pieces)]
    first = open_record_log(server, tmp_path)
    first.beat(beat(1, range(1, 2), saved=(saved[0],)))
    before, refused = set(threading.enumerate()), threading.Event()

    def refuses(uri: str) -> Folder:
        refused.set()
        return unanswered(uri)

    def slow(**parts: Any) -> Uploader:
        assert refused.wait(HANG_GUARD_S)
        (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "checkpoints")
        thread.join(0.2)
        return Uploader(**parts)

    with monkeypatch.context() as patch:
        patch.setattr("ringleader.checkpoint.folder.Folder", refuses)
        patch.setattr("ringleader.runtime.records.record_log.Uploader", slow)
        second = open_record_log(server, tmp_path)
        wait_for("the failure", lambda: server.events("checkpoint.failed"), HANG_GUARD_S)
    second.beat(beat(2, range(2, 5), saved=(saved[1],)))
    second.outcome(SUCCEEDED, finished())
    assert second.uploader.drained(60)
    assert [told["step"] for told in server.events("checkpoint.saved")] == [2]
    for record_log in (first, second):
        record_log.discard()


def test_a_manifest_that_could_not_be_written_at_the_end_is_written_again(
    server: IngestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no later checkpoint of a job that is paused."""
    monkeypatch.setattr("ringleader.runtime.records.checkpoints.AGAIN_S", (0.0, 0.0))
    position = CheckpointPosition(2, 2, attempt=1, generation=1)
    folder = Folder(f"{tmp_path / 'checkpoints'}/job_a")
    saved = SavedPart(position, 0, 1, (folder.write(position.name, "piece", b"x"),), copied_s=0.1)
    commit, refused = Folder.commit, iter([True, True, False])

    def failing(self: Folder, name: str, manifest: Manifest) -> None:
        if next(refused):
            raise OSError("try again")
        commit(self, name, manifest)

    monkeypatch.setattr(Folder, "commit", failing)
    record_log = open_record_log(server, tmp_path)
    record_log.beat(beat(1, range(1, 3), saved=(saved,)))
    record_log.outcome(End("paused"), None)
    assert record_log.uploader.drained(60)
    assert [told["why"] for told in server.events("checkpoint.failed")] == ["try again"]
    assert [told["step"] for told in server.events("checkpoint.saved")] == [2]
    record_log.discard()


def unanswered(uri: str) -> Folder:
    raise CheckpointsUnreachable(uri, "no answer for the bucket's region")


def assert_platform_error(server: IngestServer, error: str) -> None:
    (told,) = server.stream("outcome")
    assert (told["outcome"], told["result"], told["reason"]["code"]) == ("failed", None, "platform_error")
    assert error in told["reason"]["message"]


@pytest.mark.parametrize("restored", [False, True])
def test_an_attempt_that_pauses_waits_for_the_records_of_the_step_that_it_saves(
    server: IngestServer, tmp_path: Path, *, restored: bool
) -> None:
    """Its workers end behind the wait, and the next attempt begins after that step."""
    record_log = open_record_log(server, tmp_path)
    waits = threading.Thread(target=record_log.await_saved, args=(1,), daemon=True)
    saved = SavedPart(CheckpointPosition(5, 5, 1, 1), number=0, count=1, pieces=(), copied_s=0.0)
    record_log.beat(beat(1, range(1, 5), saved=(saved,)))
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    if restored:  # it has made no step of its own
        record_log.beat(
            beat(2, range(5, 5), events=(WorkerEvent("checkpoint.restored", 1, {"step": 5, "attempt": 1}),))
        )
    else:
        record_log.beat(beat(2, range(5, 6)))
    waits.join(HANG_GUARD_S)
    assert not waits.is_alive()
    record_log.discard()


@pytest.mark.parametrize("gone", [False, True])
def test_what_could_not_be_posted_until_the_supervisor_is_let_go_is_left_unless_nobody_wants_it(
    server: IngestServer, tmp_path: Path, *, gone: bool
) -> None:
    server.away = True
    record_log = open_record_log(server, tmp_path)
    record_log.beat(beat(1, range(1, 3)))
    record_log.event("worker.lost", 1, {})  # and is not on disk yet
    if gone:
        server.away, server.gone = False, True
        wait_for("news that the attempt is over", lambda: record_log.uploader.stale)
    record_log.discard()
    left = [(record["stream"], record["seq"]) for told in unposted(spool_at(tmp_path)) for record in told]
    assert left == ([] if gone else [("metrics", 1), ("metrics", 2), ("logs", 1), ("events", 1)])
    assert not spool_at(tmp_path).exists()


def spool_at(home: Path) -> Path:
    return spool_of(home, "job_a", 1)


def test_a_supervisor_killed_before_its_first_step_remembers_with_which_step_the_attempt_began(
    server: IngestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringleader.runtime.records.checkpoints.LAST_S", 2 * HANG_GUARD_S)
    saved = SavedPart(CheckpointPosition(5, 5, 1, 1), number=0, count=1, pieces=(), copied_s=0.0)
    happened = WorkerEvent("checkpoint.restored", 1, {"step": 5, "attempt": 1})
    record_log = open_record_log(server, tmp_path)
    record_log.beat(beat(1, range(5, 5), events=(happened,)))
    returned = open_record_log(server, tmp_path)
    waits = threading.Thread(target=returned.await_saved, args=(1,), daemon=True)
    returned.beat(beat(2, range(5, 5), saved=(saved,)))
    waits.start()
    waits.join(HANG_GUARD_S)
    assert not waits.is_alive()
    for one in (record_log, returned):
        one.discard()


@pytest.mark.parametrize("saved_as", ["restored", "written", "committed"])
def test_a_supervisor_killed_when_a_pause_was_saved_and_its_workers_are_gone_does_not_wait_for_them(
    server: IngestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_as: str
) -> None:
    monkeypatch.setattr("ringleader.runtime.records.checkpoints.LAST_S", 2 * HANG_GUARD_S)
    saved = SavedPart(CheckpointPosition(5, 5, 1, 1), number=0, count=1, pieces=(), copied_s=0.0)
    happened = WorkerEvent("checkpoint.restored", 1, {"step": 5, "attempt": 1})
    record_log = open_record_log(server, tmp_path)
    if saved_as == "restored":
        record_log.beat(beat(1, range(5, 5), events=(happened,)))
        record_log.beat(beat(2, range(5, 5), saved=(saved,)))
    else:
        told = beat(2, range(1, 6), saved=(saved,))
        record_log.beat(told if saved_as == "committed" else replace(told, step=5))
    if saved_as == "committed":
        wait_for("the checkpoint", lambda: server.events("checkpoint.saved"))
    returned = open_record_log(server, tmp_path)
    waits = threading.Thread(target=returned.await_saved, args=(1,), daemon=True)
    waits.start()
    waits.join(HANG_GUARD_S)
    assert not waits.is_alive()
    for one in (record_log, returned):
        one.discard()


def test_no_half_of_a_secret_is_left_where_the_supervisors_own_line_is_cut(
    server: IngestServer, tmp_path: Path
):
    record_log = open_record_log(server, tmp_path)
    record_log.hide(["correct-horse-battery"])
    record_log.say("x" * 15_990 + "correct-horse-battery")
    assert record_log.uploader.drained(60)
    assert [line["line"] for line in server.stream("logs")] == ["x" * 15_990 + "***"]
    record_log.discard()
