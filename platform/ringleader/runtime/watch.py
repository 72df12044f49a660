"""Who is frozen and who is stuck, from heartbeats. Times come in from outside."""

import threading
from dataclasses import dataclass, replace
from math import inf

BEAT_GONE_S = 3.0
FIRST_BEAT_S = 120.0
STARTING_S = 30.0
WORKING = frozenset({"forward", "backward", "update"})
BEGINNING = frozenset({"starting", "seated", "parked"})


@dataclass(frozen=True, slots=True)
class Pulse:
    """The newest sign of life of a worker.

    Attributes:
        moves: grows whenever its training thread gets on; -1 before the first heartbeat.
        moved, stepped: when it last got on, when it last committed.
        proven: it has committed a step of its generation.
        unhurried: when it was last seen in start-up, a generation's first step or evaluation; -inf if never.
    """

    seen: float
    moves: int
    moved: float
    stepped: float
    phase: str
    step: int
    generation: int = 0
    proven: bool = False
    unhurried: float = -inf


class Watch:
    """Collects heartbeats, from any thread; `verdicts` names workers to evict.

    Waiting for others, evaluation, start-up and the first step of a generation have no deadline of their own.
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

    def beat(self, worker: str, *, generation: int, moves: int, phase: str, step: int, now: float) -> None:
        with self._lock:
            old = self._pulses.get(worker, Pulse(now, -1, now, now, "starting", step))
            same = generation == old.generation
            # Who heals jumps to a step without having computed it.
            advanced = same and old.phase not in BEGINNING and step > old.step
            proven = same and (old.proven or advanced)
            free = phase in BEGINNING or phase == "evaluate" or (phase in WORKING and not proven)
            if advanced:
                self._pace_s = max(0.9 * (self._pace_s or 0.0), (now - old.stepped) / (step - old.step))
            self._pulses[worker] = Pulse(
                seen=now,
                moves=moves,
                moved=now if moves != old.moves else old.moved,
                stepped=now if advanced else old.stepped,
                phase=phase,
                step=step,
                generation=generation,
                proven=proven,
                unhurried=now if free else old.unhurried,
            )

    def patience_s(self) -> float:
        """How long an interrupted member may take to park: it sees the interrupt at its next exchange. Longer than
        it takes to find out that another one is frozen, for it may be that one it waits for."""
        if self._pace_s is None:
            return FIRST_BEAT_S
        return max(BEAT_GONE_S + 1.0, 20 * self._pace_s)

    def unhurried(self, now: float) -> frozenset[str]:
        """Who may take longer than that: it is where no deadline runs, or was so recently."""
        patience_s = self.patience_s()
        with self._lock:
            return frozenset(w for w, p in self._pulses.items() if p.unhurried >= now - patience_s)

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
