"""A worker's side of the record log: settled records wait for the next heartbeat. Implements train's RecordSink."""

import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.timeline import TimelineStretch, Unsettled
from ringleader.runtime.messages import (
    WORKING,
    Heartbeat,
    ParkMessage,
    ProcessIdentity,
    SettledMetrics,
    SettledRows,
    WorkerEvent,
)
from ringleader.runtime.worker.output_capture import OutputCapture
from ringleader.train.time_split import TimeSplit
from ringleader.wire.artifacts import MOST_BYTES, SavedArtifact
from ringleader.wire.views import Spent

RUNNING = frozenset({"forward", "backward", "exchange", "update"})


class WorkerReporter:
    """The reports of one worker's training thread. The control thread empties it with `beat`.

    Args:
        hurry: called when something should be reported at once.
    """

    def __init__(self, worker: str, identity: ProcessIdentity, hurry: Callable[[], None]) -> None:
        self.lines = OutputCapture()
        self._worker = worker
        self._identity = identity
        self._hurry = hurry
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._metrics: list[SettledMetrics] = []
        self._rows: list[SettledRows] = []
        self._events: list[WorkerEvent] = []
        self._stretches: list[TimelineStretch] = []
        self._unsettled = Unsettled()
        self._saved: list[SavedPart] = []
        self._artifacts: list[SavedArtifact] = []
        self._unheard: Heartbeat | None = None
        self._number = 0
        self._park_message: ParkMessage | None = None
        self._recorded = 0
        self._generation = 0
        self._first_step: int | None = None
        self._healed_at: float | None = None
        self._committed_at: float | None = None
        self._told: tuple[float | None, float | None] = None, None
        self._moves = 0
        self._worked, self._worked_s, self._working = 0, 0.0, 0.0
        self._step, self._epoch, self._phase = 0, 0, "starting"
        self._total_steps: int | None = None
        self._split: TimeSplit | None = None

    # --- RecordSink, called from the training thread --------------------------------------------------------------

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        with self._lock:
            self._metrics.append(SettledMetrics(step, generation, dict(values)))

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        packed = SettledRows(step, shards.astype("<i4").tobytes(), rows.astype("<i8").tobytes())
        with self._lock:
            self._rows.append(packed)

    def trace(self, stretch: TimelineStretch) -> None:
        self._unsettled.add(stretch)

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        with self._lock:
            self._events.append(WorkerEvent(kind, generation, data))
        self._hurry()  # it may be this worker's last

    def artifact(self, artifact: SavedArtifact) -> None:
        with self._lock:
            self._artifacts.append(artifact)

    def saved(self, saved: SavedPart) -> None:
        with self._lock:
            self._saved.append(saved)

    def settled(self, step: int) -> None:
        self.lines.settled(step)
        stretches = self._unsettled.settled(step)
        with self._lock:
            self._stretches += stretches

    def replayed(self) -> None:
        self.lines.replayed()

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        with self._lock:
            news = True
            if self._first_step is None:
                self._first_step, self._healed_at = step, monotonic()
            elif step > self._first_step and self._step <= self._first_step:
                # Work is counted from here on: a generation's first step is not like the others.
                self._committed_at = monotonic()
                self._worked, self._worked_s = 0, 0.0
            else:
                news = False
            self._moves += 1
            self._work(phase)
            self._step, self._epoch, self._phase = step, epoch, phase
            self._total_steps = total_steps if total_steps is not None else self._total_steps
        self.lines.at_step(step + 1 if phase in RUNNING else step)
        if news:  # a generation's first sign of work and its first commit end the phases of a recovery
            self._hurry()

    def _work(self, phase: str) -> None:
        """Count the time since the last call as computing if it was: from `forward` on, until it waits for others."""
        now = monotonic()
        if self._phase in WORKING:
            self._worked_s += now - self._working
            # Once for forward and backward together: they are one piece.
            self._worked += phase not in WORKING
        self._working = now

    def between(self, call: int) -> None:
        self.lines.between(call)

    def within(self, *, told: bool = True) -> None:
        self.lines.within(told=told)

    def timed(self, split: TimeSplit) -> None:
        self._split = split

    def recorded_step(self) -> int:
        return self._recorded

    def handed_over(self, timeout_s: float) -> bool:
        self._hurry()
        with self._answered:
            return self._answered.wait_for(lambda: not self._owes, timeout_s)

    @property
    def _owes(self) -> bool:
        """Whether any record, printed lines aside, is not acknowledged yet."""
        unheard, told = self._unheard, self._metrics or self._rows or self._events or self._stretches
        made = self._saved or self._artifacts
        return bool(told or made or (unheard is not None and unheard.records))

    # --- the worker's side ----------------------------------------------------------------------------------------

    def enter(self, generation: int) -> None:
        """Begin a generation: its first progress and commit are reported at once."""
        with self._lock:
            self._generation, self._first_step, self._phase = generation, None, "seated"
            self._park_message = None
            self._healed_at = self._committed_at = None
            self._worked, self._worked_s = 0, 0.0
            self._moves += 1

    def park(self, park_message: ParkMessage) -> None:
        with self._lock:
            self._phase, self._park_message = "parked", park_message
            self._moves += 1

    @property
    def park_message(self) -> ParkMessage | None:
        """The message with which this worker parked last; None once it has its next seat."""
        return self._park_message

    def heard(self, step: int) -> None:
        """Note that the supervisor has the last heartbeat, and the records of steps below `step`."""
        with self._answered:
            self._unheard = None
            self._answered.notify_all()
            healed_at, committed_at = self._told
            # A moment noted since that heartbeat was made has still to be sent.
            self._healed_at = None if self._healed_at == healed_at else self._healed_at
            self._committed_at = None if self._committed_at == committed_at else self._committed_at
        self._recorded = max(self._recorded, step)

    def beat(self) -> Heartbeat:
        """The heartbeat as things are, with all new records; with the same ones again until it is `heard`."""
        with self._lock:
            # Nothing newer goes with it: the supervisor may have taken this number and died before it answered.
            brought = self._unheard or self._new()
            self._told = self._healed_at, self._committed_at
            self._unheard = replace(
                brought,
                generation=self._generation,
                step=self._step,
                total_steps=self._total_steps,
                epoch=self._epoch,
                phase=self._phase,
                moves=self._moves,
                worked=self._worked,
                worked_s=self._worked_s,
                spent=_spent(self._split),
                park_message=self._park_message,
                healed_ago_s=_ago(self._healed_at),
                committed_ago_s=_ago(self._committed_at),
            )
            return self._unheard

    def _new(self) -> Heartbeat:
        """A heartbeat with all new records, which are taken away from here."""
        lines, dropped = self.lines.take()
        self._number += 1
        artifacts = self._take_artifacts()
        # What is left behind has to be stored before the metrics of the step behind its own.
        upto = self._artifacts[0].step if self._artifacts else inf
        metrics = tuple(each for each in self._metrics if each.step <= upto)
        self._metrics = self._metrics[len(metrics) :]
        rows, self._rows = tuple(self._rows), []
        events, self._events = tuple(self._events), []
        stretches, self._stretches = tuple(self._stretches), []
        saved, self._saved = tuple(self._saved), []
        return Heartbeat(
            worker=self._worker,
            identity=self._identity,
            number=self._number,
            metrics=metrics,
            rows=rows,
            events=events,
            stretches=stretches,
            saved=saved,
            artifacts=artifacts,
            lines=lines,
            lines_dropped=dropped,
        )

    def _take_artifacts(self) -> tuple[SavedArtifact, ...]:
        """As many as go with one heartbeat, one at least."""
        taken, size = 0, 0
        for artifact in self._artifacts:
            size += len(artifact.content)
            if taken and size > MOST_BYTES:
                break
            taken += 1
        artifacts, self._artifacts = tuple(self._artifacts[:taken]), self._artifacts[taken:]
        return artifacts


def _spent(split: TimeSplit | None) -> Spent | None:
    if split is None:
        return None
    return Spent(
        wall_s=split.wall_s,
        compute_s=split.compute_s,
        exposed_communication_s=split.exposed_s,
        idle_s=split.idle_s,
        recovery_s=split.recovery_s,
    )


def _ago(moment: float | None) -> float | None:
    # An age, not a moment: the monotonic clocks of two machines have nothing in common.
    return None if moment is None else monotonic() - moment
