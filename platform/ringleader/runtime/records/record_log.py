"""The supervisor's record log: what workers report becomes numbered records in the spool, posted until acknowledged."""

import math
import shutil
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from ringleader.comm.chrome import TraceFile
from ringleader.comm.seal import new_secret
from ringleader.elastic.instructions import SAVED, End
from ringleader.runtime.messages import AttemptLaunch, Heartbeat, PrintedLine, SettledMetrics
from ringleader.runtime.records.artifact_files import ArtifactFiles, ArtifactRefused
from ringleader.runtime.records.checkpoints import AttemptCheckpoints
from ringleader.runtime.records.job_result import ResultUris, not_finite, result_of
from ringleader.runtime.records.printed_once import PrintedOnce, Said
from ringleader.runtime.records.row_ledger import RowLedger
from ringleader.runtime.records.sample_queue import SampleQueue
from ringleader.runtime.records.spool import Spool
from ringleader.runtime.records.uploader import Uploader
from ringleader.runtime.worker.account_files import fetch
from ringleader.wire.artifacts import MOST_FILE, SavedArtifact
from ringleader.wire.disclosure import masked, masks_of
from ringleader.wire.ingest import Status

WEIGHTS = "weights.safetensors"
RESTORED, NOTHING = "checkpoint.restored", "checkpoint.none"
START, METRICS, HEARD, OUTCOME, CHECKPOINTS = "start", "metrics", "heard/", "outcome", "checkpoints"
PROOF, TOLD, SAVED_FILE = "proof", "told", "artifact/"
"""The names of notes: the number of the start, the newest step with metrics, the newest heartbeat of each worker, the
attempt's outcome, files of checkpoints that are none yet, the secret with which members prove themselves, the newest
line that all of them print, each artifact that was told of."""


class RecordLog:
    """The records of an attempt, taken from many threads. A step that came in already (a new rank 0 sends it again) is
    not taken twice, nor what a worker sent to the process before this one: what was acknowledged is on disk.

    Attributes:
        start: the number of this start of the supervisor; on disk before anything is sent with it.
        secret: the key with which members prove themselves: drawn once for the attempt, and sent to them alone.
        samples: the system samples that wait to be posted.
    """

    def __init__(self, launch: AttemptLaunch, status: Callable[[], Status | None]) -> None:
        self._launch = launch
        self._taking = threading.Lock()
        self._spool = Spool(launch.spool)
        notes = self._spool.notes
        self.samples = SampleQueue()
        self._masks: list[str] = []
        self._told = PrintedOnce(notes.get(TOLD), begun=launch.attempt == 1)
        self.start = int(notes.get(START, b"0")) + 1
        self.note(START, str(self.start).encode())
        # Kept over a restart: members that live prove themselves with this one.
        self.secret = notes.get(PROOF) or new_secret()
        self.note(PROOF, self.secret)
        # A start is issued once: it is on disk before any worker hears of it.
        self.write()
        self._last_step = int(notes.get(METRICS, b"0"))
        self._heard = {n.removeprefix(HEARD): int(v) for n, v in notes.items() if n.startswith(HEARD)}
        # An attempt that is over takes no rows: its files stay as its end has left them.
        open_ended = OUTCOME not in notes
        self._ledger = (
            RowLedger(launch.ledgers, launch.attempt) if launch.spec.debug.ledger and open_ended else None
        )
        self._artifacts = ArtifactFiles(launch.artifacts)
        self._unwritten: set[str] = set()
        # Earlier attempts told of theirs; one that this attempt makes once more is the same file.
        for file in self._artifacts.files() if self.start == 1 else ():
            self.note(SAVED_FILE + file, b"")
        self._trace = TraceFile(launch.spool) if launch.spec.debug.trace and open_ended else None
        with self.together():  # what the checkpoints of the process before tell at once comes after this
            self._checkpoints = AttemptCheckpoints(launch, self._committed, kept=notes.get(CHECKPOINTS))
            self._checkpoints.began_with(self.recorded_step - 1)
            self.uploader = Uploader(
                url=launch.ingest_url,
                token=launch.ingest_token,
                attempt=launch.attempt,
                spool=self._spool,
                status=status,
                samples=self.samples,
            )

    @property
    def recorded_step(self) -> int:
        """The step below which the metrics and ledger rows of all steps are here."""
        last = self._last_step if self._ledger is None else min(self._last_step, self._ledger.last_step)
        return last + 1

    @property
    def dropped(self) -> dict[str, int]:
        lost = self.samples.dropped
        return {**self._spool.dropped, "system": lost} if lost else self._spool.dropped

    def noted(self, name: str) -> bytes | None:
        """The value that this supervisor, or the process before it, has noted under a name; None without one."""
        return self._spool.notes.get(name)

    def notes(self, kind: str) -> dict[str, bytes]:
        """The notes whose names begin with `kind`, by the rest of their names."""
        return {n.removeprefix(kind): value for n, value in self._spool.notes.items() if n.startswith(kind)}

    def note(self, name: str, value: bytes) -> None:
        self._spool.note(name, value)

    def together(self) -> AbstractContextManager[Any]:
        """A block whose records and notes reach the disk together or not at all."""
        return self._spool.together()

    def write(self) -> None:
        """Write records and notes to disk."""
        self._spool.flush()

    def beat(self, beat: Heartbeat) -> None:
        """Take what a worker's heartbeat brought; it is on disk when this returns."""
        brings = _brings(beat)
        with self._taking:
            if beat.number and beat.number <= self._heard.get(beat.worker, 0):
                beat = beat.without_records()
            # First: where the disk refuses rows nothing is taken, and the worker sends all of it again.
            if self._ledger is not None:
                for rows in beat.rows:
                    self._ledger.add(rows)
            with self.together():
                self._take(beat)
                if _brings(beat):
                    self.note(HEARD + beat.worker, str(beat.number).encode())
            self._heard[beat.worker] = beat.number
            if brings:  # also what is told again because the disk did not take it
                self.write()

    def _take(self, beat: Heartbeat) -> None:
        for artifact in beat.artifacts:
            self._artifact(beat.generation, artifact)
        for metrics in beat.metrics:
            self._metrics(metrics)
        if self._trace is not None:
            for stretch in beat.stretches:
                self._trace.add(beat.worker, stretch)
            self._trace.flush()
        if self._checkpoints.take(beat, self.recorded_step):
            self.note(CHECKPOINTS, self._checkpoints.kept())
        for happened in beat.events:
            if happened.kind in (RESTORED, NOTHING):
                self._lines(self._told.begin(happened.data.get("calls", 0)))
            if happened.kind == RESTORED:
                # Noted too: the process after this one does not hear of it again.
                self._checkpoints.began_with(happened.data["step"])
                self.note(CHECKPOINTS, self._checkpoints.kept())
                if self._ledger is not None:
                    self._ledger.began_with(happened.data["step"], happened.data["attempt"])
            self.event(happened.kind, happened.generation, happened.data)
        self._lines([said for line in beat.lines for said in self._told.take(beat.worker, line)])
        if beat.lines_dropped:
            text = (
                f"[{beat.lines_dropped} earlier lines of this worker were dropped because it prints too fast]"
            )
            self._line(beat.worker, PrintedLine(datetime.now(UTC).timestamp(), "error", text))

    def _artifact(self, generation: int, artifact: SavedArtifact) -> None:
        """Write an artifact's file, and tell of it once, however often it comes."""
        noted = SAVED_FILE + artifact.file
        if noted in self._spool.notes:
            return
        try:
            self._artifacts.write(artifact)
        except ArtifactRefused as error:
            # Once: where there is no room for one, there is none for the next.
            if error.message not in self._unwritten:
                self._unwritten.add(error.message)
                lost = {"file": artifact.file[:MOST_FILE], "step": artifact.step, "why": error.message}
                self.event("artifact.failed", generation, lost | {"hint": error.hint})
            return
        data = {"name": artifact.name, "file": artifact.file, "kind": artifact.kind, "step": artifact.step}
        self.event("artifact.saved", generation, data | {"size_bytes": len(artifact.content)})
        self.note(noted, b"")

    def _lines(self, told: list[Said]) -> None:
        for worker, line in told:
            self._line(worker, line)
        if any(line.before is not None for _, line in told) and (note := self._told.note()) is not None:
            self.note(TOLD, note)

    def _committed(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        with self.together():
            self.note(CHECKPOINTS, self._checkpoints.kept())
            self.event(kind, generation, data)

    @property
    def saving_s(self) -> float:
        """The longest that the writing of a checkpoint has taken so far, in seconds."""
        return self._checkpoints.slowest_s

    def await_saved(self, generation: int) -> None:
        """Wait until all parts of that generation's checkpoint are written and its records here, at most a minute."""
        self._checkpoints.await_complete(generation)

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        self._spool.put("events", {"at": _now(), "generation": generation, "type": kind, "data": data})
        self.uploader.hurry()

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these in the supervisor's own lines."""
        # Here too, although the control plane masks: a traceback may hold one just where a line is cut.
        self._masks = masks_of(secrets)

    def say(self, text: str) -> None:
        """Record a line of the supervisor's own."""
        with self._taking:
            for line in masked(text, self._masks).splitlines():
                self._line("supervisor", PrintedLine(datetime.now(UTC).timestamp(), "error", line))

    def outcome(self, end: End, finished: dict[str, Any] | None) -> None:
        """Write the last record. Artifacts are in place before it; where that fails, so has the attempt."""
        if self.over:
            return
        try:
            self._end(end, finished)
        except Exception:  # whatever it was, the control plane has to hear of an end
            self._end(End("failed", "platform_error", traceback.format_exc()), None)
        self.write()
        self.uploader.hurry()

    @property
    def over(self) -> bool:
        """Whether the attempt's outcome is recorded."""
        return OUTCOME in self._spool.notes

    def discard(self) -> None:
        """Stop posting, and remove the spool, unless records wait there that the control plane may want."""
        # First: its thread reads the spool, which is closed or removed below.
        self.uploader.close()
        if self._spool.notes.get(OUTCOME) == b"succeeded":  # nothing goes on from here
            shutil.rmtree(self._launch.ledgers, ignore_errors=True)
        if self._ledger is not None:
            self._ledger.close()
        if self._trace is not None:
            self._trace.close()
        unwanted = self.uploader.stale or self.uploader.silent_s > self._launch.api_gone_s
        if unwanted or self._spool.empty:
            self._spool.discard()
        else:
            # Not emptied first: the control plane collects what waits there itself.
            self._spool.close()

    def _end(self, end: End, finished: dict[str, Any] | None) -> None:
        newest = self._checkpoints.finish() if end.outcome in ("succeeded", *SAVED) else ""
        reason = None
        with self._taking:  # also of an attempt that failed or was cancelled
            trace = self._trace.finish(self._launch.artifacts).as_uri() if self._trace is not None else ""
        if end.reason:
            reason = {"code": end.reason, "message": end.message, "hint": end.hint}
        result = None
        if end.outcome == "succeeded" and finished is not None:
            fetch(self._launch, WEIGHTS)
            for name, value in not_finite(finished["scores"]).items():
                self.say(f"The score {name!r} is {value} and is left out of the result.")
            ledger = self._ledger.finish(self._launch.artifacts).as_uri() if self._ledger is not None else ""
            weights = self._launch.artifacts / WEIGHTS
            uris = ResultUris(weights.as_uri() if weights.exists() else "", newest, ledger, trace)
            result = result_of(finished, uris).model_dump(mode="json")
        record = {"at": _now(), "outcome": end.outcome, "reason": reason, "result": result}
        with self._taking, self.together():
            self._lines(self._told.end())
        with self.together():
            self._spool.put("outcome", record)
            self.note(OUTCOME, end.outcome.encode())

    def _metrics(self, metrics: SettledMetrics) -> None:
        if metrics.step <= self._last_step:
            return
        self._last_step = metrics.step
        # JSON has no NaN and no infinity: one value must not cost the record of the step.
        values = {k: (v if math.isfinite(v) else None) for k, v in metrics.values.items()}
        record = {"at": _now(), "generation": metrics.generation, "step": metrics.step, "values": values}
        self._spool.put("metrics", record)
        self.note(METRICS, str(metrics.step).encode())

    def _line(self, worker: str, line: PrintedLine) -> None:
        at = datetime.fromtimestamp(line.at, UTC).isoformat()
        self._spool.put("logs", {"at": at, "worker": worker, "level": line.level, "line": line.text[:16_000]})


def _brings(beat: Heartbeat) -> bool:
    return bool(beat.records or beat.lines or beat.lines_dropped)


def _now() -> str:
    return datetime.now(UTC).isoformat()
