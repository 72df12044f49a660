"""Who is frozen and who is stuck, from heartbeats. Times come in from outside."""

import threading
from dataclasses import dataclass, replace

BEAT_GONE_S = 3.0
FIRST_BEAT_S = 120.0
STARTING_S = 30.0
WORKING = frozenset({"forward", "backward", "update"})


@dataclass(frozen=True, slots=True)
class Pulse:
    """The newest sign of life of a worker.

    Attributes:
        moves: grows whenever its training thread gets on; -1 before the first heartbeat.
        moved, stepped: when it last got on, when it last committed.
        proven: it has committed a step.
    """

    seen: float
    moves: int
    moved: float
    stepped: float
    phase: str
    step: int
    proven: bool = False


class Watch:
    """Collects heartbeats, from any thread; `verdicts` names workers to evict.

    Waiting for others, evaluation, start-up and a worker's first step have no deadline of their own.
    """

    def __init__(self, stall_timeout_s: float) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._lock = threading.Lock()
        self._pulses: dict[str, Pulse] = {}
        self._looked: float | None = None
        self._pace_s: float | None = None

    def expect(self, worker: str, now: float) -> None:
        """`worker` was started and has not been heard of."""
        with self._lock:
            self._pulses.setdefault(worker, Pulse(now, -1, now, now, "starting", 0))

    def forget(self, worker: str) -> None:
        with self._lock:
            self._pulses.pop(worker, None)

    def beat(self, worker: str, *, moves: int, phase: str, step: int, now: float) -> None:
        with self._lock:
            old = self._pulses.get(worker, Pulse(now, -1, now, now, "starting", step))
            advanced = old.moves >= 0 and step > old.step
            if advanced:
                self._pace_s = max(0.9 * (self._pace_s or 0.0), (now - old.stepped) / (step - old.step))
            self._pulses[worker] = Pulse(
                seen=now,
                moves=moves,
                moved=now if moves != old.moves else old.moved,
                stepped=now if advanced else old.stepped,
                phase=phase,
                step=step,
                proven=old.proven or advanced,
            )

    def patience_s(self) -> float:
        """How long an interrupted member may take to park: it sees the interrupt at its next exchange. Longer than
        it takes to find out that another one is frozen, for it may be that one it waits for."""
        if self._pace_s is None:
            return self._stall_timeout_s
        return max(BEAT_GONE_S + 1.0, 20 * self._pace_s)

    def verdicts(self, now: float) -> list[tuple[str, str]]:
        """(worker, cause) to evict now; each is named once."""
        late = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        with self._lock:
            if late > 1.0:  # this process did not run: it may have missed beats itself
                self._pulses = {w: replace(p, seen=p.seen + late) for w, p in self._pulses.items()}
                return []
            verdicts = [(w, cause) for w, p in self._pulses.items() if (cause := self._judge(p, now))]
            for worker, _ in verdicts:
                del self._pulses[worker]
        return verdicts

    def _judge(self, pulse: Pulse, now: float) -> str:
        if now - pulse.seen > _limit(pulse):
            return "frozen"
        stuck = pulse.proven and pulse.phase in WORKING and now - pulse.moved > self._stall_timeout_s
        return "stalled" if stuck else ""


def _limit(pulse: Pulse) -> float:
    if pulse.moves < 0:
        return FIRST_BEAT_S
    return STARTING_S if pulse.phase == "starting" else BEAT_GONE_S
