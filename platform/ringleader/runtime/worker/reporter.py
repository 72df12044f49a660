"""A worker's side of the outlet: settled records wait here for the next heartbeat. Implements train's Outlet."""

import threading
from collections.abc import Callable
from dataclasses import replace
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
from ringleader.wire.views import Spent

RUNNING = frozenset({"forward", "backward", "exchange", "update"})


class WorkerReporter:
    """What one worker's training thread reports. The control thread empties it with `beat`.

    Args:
        hurry: called when something should be told at once.
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
        self._unheard: Heartbeat | None = None
        self._number = 0
        self._standing: ParkMessage | None = None
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

    # --- Outlet, called from the training thread ------------------------------------------------------------------

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
        """From `forward` on this worker computes, until it waits for others."""
        now = monotonic()
        if self._phase in WORKING:
            self._worked_s += now - self._working
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
        """Whether anything but printed lines is told and not heard."""
        unheard, told = self._unheard, self._metrics or self._rows or self._events or self._stretches
        return bool(told or self._saved or (unheard is not None and unheard.records))

    # --- the worker's side ----------------------------------------------------------------------------------------

    def enter(self, generation: int) -> None:
        """A generation begins: its first progress and commit are told at once."""
        with self._lock:
            self._generation, self._first_step, self._phase = generation, None, "seated"
            self._standing = None
            self._healed_at = self._committed_at = None
            self._worked, self._worked_s = 0, 0.0
            self._moves += 1

    def park(self, standing: ParkMessage) -> None:
        with self._lock:
            self._phase, self._standing = "parked", standing
            self._moves += 1

    @property
    def standing(self) -> ParkMessage | None:
        """With what this worker parked last, while it has no other seat."""
        return self._standing

    def heard(self, step: int) -> None:
        """The supervisor has the last heartbeat, and the records of steps below `step`."""
        with self._answered:
            self._unheard = None
            self._answered.notify_all()
            healed_at, committed_at = self._told
            self._healed_at = None if self._healed_at == healed_at else self._healed_at
            self._committed_at = None if self._committed_at == committed_at else self._committed_at
        self._recorded = max(self._recorded, step)

    def beat(self) -> Heartbeat:
        """How things are, with everything that is new; with the same again until it is `heard`."""
        with self._lock:
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
                standing=self._standing,
                healed_ago_s=_ago(self._healed_at),
                committed_ago_s=_ago(self._committed_at),
            )
            return self._unheard

    def _new(self) -> Heartbeat:
        """Everything that is new, taken away from here."""
        lines, dropped = self.lines.take()
        self._number += 1
        metrics, self._metrics = tuple(self._metrics), []
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
            lines=lines,
            lines_dropped=dropped,
        )


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
    return None if moment is None else monotonic() - moment
