"""This member's part of the job's checkpoints: when one is due, what it holds, and where a new attempt starts."""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import torch

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import CheckpointFile, CheckpointPosition, SavedPart
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import FoundCheckpoint, Snapshot, SnapshotMemory, newest, size_of
from ringleader.checkpoint.writer import WriteFailed, Writer, give_way
from ringleader.spec import JobSpec
from ringleader.train.between_calls.boundaries import CallBoundary, States
from ringleader.train.generation.saving.cadence import CheckpointCadence, CheckpointVote
from ringleader.train.ports import RecordSink

Work = Callable[[], None]
PATIENCE_S = 60.0
LOOK_S = 0.05
"""Interval at which a wait checks whether it goes on."""
TOLD_S = 1.0
AGAIN_S, SELDOM_S = 1.0, 60.0
"""The pause before a failed write is first tried again, doubled each time up to the second value."""

NOT_TAKEN = "schedules, kept objects and the position start afresh"
"""The parts of a job's state that `init_from` does not take over."""


class CheckpointSaver:
    """Copies this member's part at a boundary and has a process write it, one checkpoint at a time.

    Args:
        place: the URI of the folder of the job's checkpoints; None: there are none.
        patience_s: seconds that training waits for the checkpoint before, and the end of a run for the last one.
    """

    def __init__(
        self, spec: JobSpec, place: str | None, sink: RecordSink, patience_s: float = PATIENCE_S
    ) -> None:
        self.cadence = CheckpointCadence(
            spec.checkpoint.every_steps, spec.checkpoint.every_s, time.perf_counter
        )
        self._place = place
        self._sink = sink
        self._patience_s = patience_s
        self._room = SnapshotMemory()
        self._writer = Writer()
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._waited = self._missed = False
        self._copied_at = -inf
        self._thread: threading.Thread | None = None

    @property
    def on(self) -> bool:
        """Whether there is a place for checkpoints."""
        return self._place is not None

    @property
    def asked_for(self) -> bool:
        """Whether the job has checkpoints, by steps or by time."""
        return self.on and self.cadence.asked_for

    @property
    def idle(self) -> bool:
        """Whether nothing is being written."""
        return self._idle.is_set()

    @property
    def wish(self) -> CheckpointVote:
        """This member's vote on a checkpoint now, by time."""
        return self.cadence.wish(busy=not self._idle.is_set())

    def nears(self, step: int) -> bool:
        """Whether the next checkpoint is closer than the one before, where there is a place for them."""
        return self.on and self.cadence.nears(step)

    def would_secure(self, step: int) -> bool:
        """Whether a checkpoint made now would hold more than the one before, and wait for nothing."""
        return self.on and self._idle.is_set() and self.cadence.at_risk(step)

    def save(
        self, state: Any, part: CheckpointPart, position: CheckpointPosition, *, settled: bool = False
    ) -> None:
        """Copy the state and return; writing goes on beside training. There is one copy at a time: where the one before
        is not written yet this waits for it, and if that takes longer than `patience_s` this step has no checkpoint.
        For `settled` see `SavedPart`."""
        if not self._ready(position.step):
            why = f"writing the previous checkpoint took more than {self._patience_s:g} s"
            self._failed(position, why)
            return
        self._waited = False
        now = time.perf_counter()
        # The time between two copies bounds how long the writing process may rest between two chunks.
        spare_s, self._copied_at = now - self._copied_at, now
        try:
            snapshot = Snapshot(state, part, self._room)
        except (RuntimeError, OSError, MemoryError) as error:
            if not position.final:
                raise
            # All that the job is for is done: it is not to fail for want of memory for one more copy.
            self._failed(position, f"there is no memory for the copy ({error})")
            return
        self._begin(partial(self._write, snapshot, part, position, spare_s, settled=settled))

    def expect(self, state: Any, part: CheckpointPart) -> None:
        """Prepare, in the background, the memory for the copy of such a state and the process that writes it."""
        if self._idle.is_set():
            self._begin(partial(self._prepare, size_of(state, part)))

    def written(self, look: Work = lambda: None) -> bool:
        """Wait up to `patience_s` until the copy is written. Returns whether it is.

        Args:
            look: called now and then; what it raises ends the wait.
        """
        written = self._wait(self._patience_s, look)
        self._waited = not written
        return written

    def finish(self, given_up: Callable[[], bool]) -> bool:
        """Wait, without a bound, until the copy is written or until `given_up`. Returns whether it is written."""
        while not self._wait(LOOK_S):
            if given_up():
                return False
        return True

    def insist(self, save: Work, given_up: Callable[[], bool], cancelled: Callable[[], bool]) -> None:
        """Call `save` and wait until its copy is written; try again where that fails, until `given_up`: nobody trains
        meanwhile, and what is not saved is lost. Once `cancelled`, the running write is finished and no other is
        tried."""
        again_s = AGAIN_S
        while self.finish(given_up):  # the one before, of which there may be a copy
            self._missed = False
            save()
            if not (self.finish(given_up) and self._missed):
                return
            if not _rested(again_s, lambda: given_up() or cancelled()):
                return
            again_s = min(2 * again_s, SELDOM_S)

    def newest(self, device: torch.device) -> FoundCheckpoint | None:
        """The newest checkpoint that can be read whole, with what lay on a device on this one; others are reported and
        passed over. None where there is none. Raises CheckpointsUnreachable."""
        if self._place is None:
            return None
        found, passed_over = newest(Folder(self._place), device)
        for error in passed_over:
            self._sink.event("checkpoint.skipped", 0, {"why": error.message})
        return found

    def tell_start(self, found: FoundCheckpoint, generation: int, calls: int) -> None:
        """Report the checkpoint with which a later attempt begins, and how many session calls are finished in it."""
        at = found.manifest.position
        self.cadence.begin_at(at.step)
        data = {"uri": found.place, "step": at.step, "attempt": at.attempt, "calls": calls}
        self._sink.event("checkpoint.restored", generation, data)

    def tell_nothing(self, generation: int) -> None:
        """Report that a later attempt begins as the first one did: what that had committed is trained again."""
        self._sink.event("checkpoint.none", generation, {"step": 0})

    def tell_weights(self, place: str, told: dict[str, Any], generation: int) -> None:
        """Report the weights that a job begins with, those that it could not take over, and what `init_from` leaves."""
        words = {
            "only_here": "not in the file",
            "only_there": "not in this job",
            "other_shape": "of another shape",
        }
        for what, why in words.items():
            if told[what]:
                print(f"ringleader: init_from {place}: {why}: {', '.join(told[what])}")
        states = (
            f" and the optimizers' states of {told['optimizers']} parameters" if "optimizers" in told else ""
        )
        left = NOT_TAKEN if states else f"optimizers, {NOT_TAKEN}"
        print(
            f"ringleader: init_from {place}: {told['taken']} weights and buffers{states} were loaded; {left}."
        )
        self._sink.event("weights.loaded", generation, {"uri": place, "not_taken": left} | told)

    def close(self) -> None:
        """End the thread and the writing process, and free the memory of the copy; what was copied is written first, if
        that does not take too long."""
        if self._thread is None:
            return
        # A file system that was waited for in vain is not waited for again.
        if self._wait(0 if self._waited else self._patience_s):
            self._work.put(None)
            self._thread.join(self._patience_s)
            # Not once this saver is collected: its session is one cycle, and the copy may be as large as the model.
            self._room.release()
        else:
            print(f"ringleader: the last checkpoint was not written within {self._patience_s:g} s")
        self._thread = None

    def _ready(self, step: int) -> bool:
        """Whether there is room for a copy. A file system that hangs is waited for once, not at each checkpoint."""
        since = time.perf_counter()
        ready = self._wait(0 if self._waited else self._patience_s)
        waited_s = time.perf_counter() - since
        self._waited = not ready
        if waited_s > TOLD_S:
            print(
                f"ringleader: training waited {waited_s:.1f} s at step {step} for the previous checkpoint to be written"
            )
        return ready

    def _wait(self, patience_s: float, look: Work = lambda: None) -> bool:
        if not self._idle.is_set():
            # The process rests between two chunks for training's sake, and no more once somebody waits for it.
            self._writer.hurry()
        until = time.perf_counter() + patience_s
        while not self._idle.wait(min(LOOK_S, max(0.0, until - time.perf_counter()))):
            if time.perf_counter() >= until:
                return False
            look()
        return True

    def _begin(self, work: Work) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ringleader-saver", daemon=True)
            self._thread.start()
        # Before the work is queued: the thread could be through with it first, and this would undo its `set`.
        self._idle.clear()
        self._work.put(work)

    def _serve(self) -> None:
        # Not by the least urgent of threads: it would be given the interpreter's lock, and then no core.
        while (work := self._work.get()) is not None:
            work()
            self._idle.set()
        self._writer.close()

    def _prepare(self, size_bytes: int) -> None:
        with suppress(RuntimeError, OSError):  # no memory, no process: the first checkpoint will say so
            self._room.prepare(size_bytes)
            if self._room.descriptor >= 0:
                self._writer.prepare()

    def _write(
        self,
        snapshot: Snapshot,
        part: CheckpointPart,
        position: CheckpointPosition,
        spare_s: float,
        *,
        settled: bool,
    ) -> None:
        since = time.perf_counter()
        try:
            pieces = tuple(self._written(snapshot, position.name, spare_s, final=position.final))
        except WriteFailed as error:
            self._failed(position, str(error))
        except Exception as error:  # of whatever file system: training goes on
            print(traceback.format_exc())
            self._failed(position, f"{type(error).__name__}: {error}")
        else:
            took_s = time.perf_counter() - since
            self.cadence.written(took_s)
            times = (snapshot.took_s, took_s)
            self._sink.saved(SavedPart(position, part.number, part.count, pieces, *times, settled))

    def _written(self, snapshot: Snapshot, name: str, spare_s: float, *, final: bool) -> list[CheckpointFile]:
        assert self._place is not None
        if final and not self._writer.runs:  # nobody trains any more, and a process takes its time to start
            return snapshot.write(Folder(self._place), name)
        order = snapshot.order(self._place, name)
        if order is not None:
            return self._writer.write(order, spare_s)
        # No memory can be shared with a process, so this thread writes, and training goes first.
        give_way()
        return snapshot.write(Folder(self._place), name)

    def _failed(self, position: CheckpointPosition, why: str) -> None:
        self._missed = True
        self._sink.event("checkpoint.failed", position.generation, {"why": why, "step": position.step})


def _rested(for_s: float, given_up: Callable[[], bool]) -> bool:
    """Sleep for `for_s` seconds. Returns False as soon as `given_up`."""
    until = time.perf_counter() + for_s
    while time.perf_counter() < until:
        if given_up():
            return False
        time.sleep(LOOK_S)
    return True


def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the states of all servers into the first, which lacks only what another server updates alone."""
    first = states[0]
    for other in states[1:]:
        for mine, theirs in zip(first["models"], other["models"], strict=True):
            mine.update(theirs)
        for mine, theirs in zip(first["optimizers"], other["optimizers"], strict=True):
            mine["state"].update(theirs["state"])
        _join_boundaries(first["rest"], other.get("boundaries", {}))  # checkpoints of before have none
    return first


def _join_boundaries(rest: dict[str, Any], states: dict[int, States]) -> None:
    """Add the optimizer states that another server recorded between calls to the boundaries of the first."""
    since, plain = rest.get("boundaries", (0, []))
    boundaries = [CallBoundary.of_plain(values) for values in plain]
    for number, given in states.items():
        if since <= number < since + len(boundaries):
            boundaries[number - since].add_states(given)
    rest["boundaries"] = since, [boundary.plain() for boundary in boundaries]
