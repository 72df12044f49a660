"""The heartbeats of an attempt's workers: how far each of them is, and which are frozen, stalled, or slow."""

import queue
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ringleader.elastic import events as ev
from ringleader.runtime.messages import Heartbeat
from ringleader.runtime.supervisor.failure_detector import FailureDetector, ProcessGlance
from ringleader.runtime.supervisor.stragglers import StragglerDetector


@dataclass(frozen=True, slots=True)
class WorkerPace:
    """How long a worker has loaded and computed in a generation by the time of a step, without waiting for others."""

    generation: int
    step: int
    worked_s: float

    def step_s(self, before: "WorkerPace | None") -> float | None:
        """Seconds of its own for each step since then; None where no such time is known."""
        if before is None or before.generation != self.generation or self.step <= before.step:
            return None
        # The generation's first step does not count: once it is over the worker counts from 0 again.
        worked_s = self.worked_s - before.worked_s
        return worked_s / (self.step - before.step) if worked_s >= 0 else None


class Heartbeats:
    """The heartbeats of one attempt. They come in on any thread; what follows from them is for the one that decides.

    Attributes:
        newest: the heartbeat of the furthest worker; None before the first.
        paces: by worker, as the newest heartbeats have told.
    """

    def __init__(self, stall_timeout_s: float) -> None:
        self.newest: Heartbeat | None = None
        self.paces: dict[str, WorkerPace] = {}
        self._failure_detector = FailureDetector(stall_timeout_s)
        self._stragglers = StragglerDetector()
        self._phases: dict[str, str] = {}
        self._heard: queue.SimpleQueue[tuple[Heartbeat, float]] = queue.SimpleQueue()
        # A list: a worker whose call timed out sends the heartbeat again while the first is still taken.
        self._taking: list[str] = []

    def begin(self, beat: Heartbeat) -> None:
        """A heartbeat is being taken."""
        # Until it is answered the worker sends no other: it counts as alive.
        self._taking.append(beat.worker)

    def end(self, beat: Heartbeat, now: float) -> None:
        """It is taken, or could not be: its worker lives."""
        self._failure_detector.beat(
            beat.worker,
            generation=beat.generation,
            moves=beat.moves,
            phase=beat.phase,
            step=beat.step,
            now=now,
        )
        self._taking.remove(beat.worker)

    def note(self, beat: Heartbeat, now: float) -> None:
        """Note what a heartbeat that was taken says of its worker."""
        self._phases[beat.worker] = beat.phase
        self.paces[beat.worker] = WorkerPace(beat.generation, beat.step, beat.worked_s)
        # Judged on the thread that decides: the detector of stragglers has no lock.
        self._heard.put((beat, now))
        newest = self.newest
        if newest is None or (beat.generation, beat.step) >= (newest.generation, newest.step):
            self.newest = beat

    def expect(self, worker: str, now: float) -> None:
        """Miss this worker from now on, if it sends none."""
        self._failure_detector.expect(worker, now)

    def forget(self, worker: str) -> None:
        """Miss this worker no more."""
        self._failure_detector.forget(worker)

    def lost(self, worker: str) -> str | None:
        """Miss this worker no more: it is gone. Returns the phase that it was in, as far as it has told."""
        self.forget(worker)
        self.paces.pop(worker, None)
        return self._phases.pop(worker, None)

    def missed(
        self, now: float, glance: Callable[[str], ProcessGlance | None]
    ) -> Iterator[ev.Stalled | ev.Evict]:
        """The events of workers that are frozen or stalled; each is to be handled before the next is asked for."""
        for worker in set(self._taking):
            self._failure_detector.waits(worker, now)
        for worker in self._failure_detector.silent(now):
            look = glance(worker)
            if look is not None:
                self._failure_detector.glanced(worker, look, now)
        # Before the verdicts, which forget whom they evict: a stall is reported first.
        for stall in self._failure_detector.stalls(now):
            yield ev.Stalled(stall.worker, stall.phase, round(stall.since_s, 3), now)
        for verdict in self._failure_detector.verdicts(now):
            yield ev.Evict(verdict.worker, verdict.cause, now, verdict.since)

    def news(self) -> Iterator[tuple[Heartbeat, float]]:
        """The heartbeats that came since the last call, each with the moment at which it came."""
        while not self._heard.empty():
            beat, at = self._heard.get()
            self._stragglers.take(
                beat.worker, generation=beat.generation, worked_s=beat.worked_s, worked=beat.worked, now=at
            )
            yield beat, at

    def slow(self, now: float, shares: Mapping[str, float], *, evict: bool) -> Iterator[ev.Slow]:
        """The events of stragglers; `shares`: the share of a step that each worker computes."""
        for found in self._stragglers.look(now, shares):
            yield ev.Slow(found.worker, round(found.step_s, 6), round(found.others_s, 6), evict, now)

    def tick(self, now: float, saving_s: float) -> ev.Tick:
        """The event of time that has gone by; `saving_s`: how long checkpoints take."""
        detector = self._failure_detector
        return ev.Tick(now, detector.patience_s(), detector.unhurried(now), detector.usual_s + saving_s)
