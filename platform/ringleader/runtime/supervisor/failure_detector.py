"""The detector of frozen and stalled workers, from heartbeats. Times come in from outside."""

import threading
from dataclasses import dataclass, replace
from math import inf

from ringleader.runtime.messages import OWN, WORKING

FROZEN = "frozen"
BEAT_GONE_S = 3.0
SILENT_S = 1.0
"""The silence after which a process is looked at: one that is stopped is frozen, there is no need to wait."""
# Not by the clock: on a busy machine half a minute of it may be six seconds of a process.
HELD_S = 30.0
"""The CPU time of a process that runs without heartbeats, because user code holds the interpreter's lock."""
BUSY_CPU_S = 0.05
STALL_SHARE = 0.1
"""The share of the policy's time after which missing progress is reported."""
FIRST_BEAT_S = 120.0
STARTING_S = 30.0
BEGINNING = frozenset({"starting", "seated", "parked"})
TAKING_TIME = frozenset({"evaluate", "finish"})
"""The phases that may take any time: no worker in them is late."""
WAITING = TAKING_TIME | {"exchange", "parked"}
"""The phases in which a worker without progress waits for another one."""


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The newest sign of life of a worker.

    Attributes:
        moves: grows whenever its training thread gets on; -1 before the first heartbeat.
        moved, stepped: when it last got on, when it last committed.
        proven: it has committed a step of its generation.
        unhurried: when it was last seen in start-up, a generation's first step or evaluation; -inf if never.
        told: its stall was reported.
        stopped: its process was seen stopped.
        cpu_s: what its process had used when it was looked at; `ran` when that was last seen to grow, `silent_cpu_s`
            what it was at the first look since the last heartbeat.
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
    told: bool = False
    stopped: bool = False
    cpu_s: float | None = None
    ran: float = -inf
    silent_cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessGlance:
    """A process as its operating system sees it: whether a signal has stopped it, and the CPU seconds it has used."""

    stopped: bool
    cpu_s: float


@dataclass(frozen=True, slots=True)
class StalledWorker:
    """A worker that sends heartbeats and has made no progress in `phase` for `since_s`."""

    worker: str
    phase: str
    since_s: float


@dataclass(frozen=True, slots=True)
class Eviction:
    """A worker to evict. `since`: its last sign of life, or of progress."""

    worker: str
    cause: str
    since: float


class FailureDetector:
    """Collects heartbeats, from any thread; `verdicts` names workers to evict.

    Waiting for others, evaluation, start-up and the first step of a generation have no deadline of their own. Updates
    and what the program does between session calls have one while another worker waits: it has to have waited as long.
    """

    def __init__(self, stall_timeout_s: float) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._lock = threading.Lock()
        self._heartbeats: dict[str, LastHeartbeat] = {}
        self._looked: float | None = None
        self._pace_s: float | None = None
        self._usual_s = 0.0

    def expect(self, worker: str, now: float) -> None:
        """Note that `worker` was started and has not been heard of."""
        with self._lock:
            # Not replaced: the first heartbeat may be here before the event of the start.
            self._heartbeats.setdefault(worker, LastHeartbeat(now, -1, now, now, "starting", 0))

    def forget(self, worker: str) -> None:
        with self._lock:
            self._heartbeats.pop(worker, None)

    def beat(self, worker: str, *, generation: int, moves: int, phase: str, step: int, now: float) -> None:
        with self._lock:
            old = self._heartbeats.get(worker, LastHeartbeat(now, -1, now, now, "starting", step))
            same = generation == old.generation
            # A worker that heals jumps to a step without having computed it.
            advanced = same and old.phase not in BEGINNING and step > old.step
            proven = same and (old.proven or advanced)
            free = phase in BEGINNING | TAKING_TIME | OWN or (phase in WORKING and not proven)
            if advanced:
                took_s = (now - old.stepped) / (step - old.step)
                # Falls by a tenth a step: one long step does not stretch the deadlines for good.
                self._pace_s = max(0.9 * (self._pace_s or 0.0), took_s)
                # A generation's first step is not like the others.
                self._usual_s = max(0.9 * self._usual_s, took_s if old.proven else 0.0)
            self._heartbeats[worker] = LastHeartbeat(
                seen=now,
                moves=moves,
                moved=now if moves != old.moves else old.moved,
                stepped=now if advanced else old.stepped,
                phase=phase,
                step=step,
                generation=generation,
                proven=proven,
                unhurried=now if free else old.unhurried,
                told=old.told and moves == old.moves,
            )

    def waits(self, worker: str, now: float) -> None:
        """Note that a heartbeat of `worker` has come and is not answered yet: it sends no other before that."""
        with self._lock:
            if worker in self._heartbeats:
                self._heartbeats[worker] = replace(self._heartbeats[worker], seen=now)

    def silent(self, now: float) -> tuple[str, ...]:
        """The workers that have sent a heartbeat once and none for `SILENT_S`: their processes are to be looked at."""
        with self._lock:
            return tuple(w for w, p in self._heartbeats.items() if p.moves >= 0 and now - p.seen > SILENT_S)

    def glanced(self, worker: str, glance: ProcessGlance, now: float) -> None:
        """Take the result of a look at the process of a silent worker."""
        with self._lock:
            old = self._heartbeats.get(worker)
            if old is None or now - old.seen <= SILENT_S:
                return  # it has beaten meanwhile
            grown = old.cpu_s is not None and glance.cpu_s - old.cpu_s > BUSY_CPU_S
            # The old value stays until enough has come together: little CPU in each of many looks must add up.
            fresh = old.cpu_s is None or grown
            self._heartbeats[worker] = replace(
                old,
                stopped=glance.stopped,
                cpu_s=glance.cpu_s if fresh else old.cpu_s,
                ran=now if grown else old.ran,
                silent_cpu_s=glance.cpu_s if old.silent_cpu_s is None else old.silent_cpu_s,
            )

    def patience_s(self) -> float:
        """The seconds that an interrupted member may take to park: it sees the interrupt at its next exchange."""
        if self._pace_s is None:
            return FIRST_BEAT_S
        # Longer than it takes to find another one frozen, for which it may be waiting.
        return max(BEAT_GONE_S + 1.0, 20 * self._pace_s)

    @property
    def usual_s(self) -> float:
        """The longest that a step takes at the present pace, in seconds; 0 before that is known."""
        return self._usual_s

    def unhurried(self, now: float) -> frozenset[str]:
        """The workers that may take longer than `patience_s`: no deadline runs where they are, or were just now."""
        patience_s = self.patience_s()
        with self._lock:
            return frozenset(w for w, p in self._heartbeats.items() if p.unhurried >= now - patience_s)

    def verdicts(self, now: float) -> list[Eviction]:
        """The workers to be evicted now; each is named once."""
        late = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        with self._lock:
            if late > 1.0:  # this process did not run: it may have missed beats itself
                self._heartbeats = {w: replace(p, seen=p.seen + late) for w, p in self._heartbeats.items()}
                return []
            verdicts = [
                Eviction(worker, cause, heartbeat.seen if cause == FROZEN else heartbeat.moved)
                for worker, heartbeat in self._heartbeats.items()
                if (cause := self._judge(worker, heartbeat, now))
            ]
            # Only where nobody else is evicted: that may be the one for which they wait.
            verdicts = verdicts or self._apart(now)
            for verdict in verdicts:
                del self._heartbeats[verdict.worker]
        return verdicts

    def stalls(self, now: float) -> list[StalledWorker]:
        """The workers without progress, each named once until it makes some."""
        with self._lock:
            heartbeats = [(w, p) for w, p in self._heartbeats.items() if not p.told]
            found = [w for w, p in heartbeats if self._stuck(w, p, now, self._notice_s)]
            for worker in found:
                self._heartbeats[worker] = replace(self._heartbeats[worker], told=True)
            heartbeats = [(worker, self._heartbeats[worker]) for worker in found]
        return [StalledWorker(worker, p.phase, now - p.moved) for worker, p in heartbeats]

    def _apart(self, now: float) -> list[Eviction]:
        """The youngest worker, where all wait for each other for longer than a step may hang."""
        newest = max((p.generation for p in self._heartbeats.values()), default=0)
        group = {w: p for w, p in self._heartbeats.items() if p.generation == newest > 0}
        waits = [p.proven and p.phase == "exchange" and now - p.moved > self._limit_s for p in group.values()]
        # Where nobody is left at work for whom the others could wait, some two of them cannot reach each other.
        if len(group) < 2 or not all(waits):
            return []
        # A server's name sorts before a worker's: it is the last to go.
        # Nobody can tell from here which ones: where it was another one, the next goes after as long.
        youngest = max(group, key=lambda worker: (worker[0], len(worker), worker))
        return [Eviction(youngest, "unheard", group[youngest].moved)]

    def _judge(self, worker: str, heartbeat: LastHeartbeat, now: float) -> str:
        if heartbeat.stopped or now - heartbeat.seen > _limit(heartbeat, now):
            return FROZEN
        return "stalled" if self._stuck(worker, heartbeat, now, self._limit_s) else ""

    @property
    def _limit_s(self) -> float:
        """The time without progress that is a stall: the policy's, or twice a usual step where that is longer."""
        return max(self._stall_timeout_s, 2 * self._usual_s)

    @property
    def _notice_s(self) -> float:
        return min(self._limit_s, max(1.0, STALL_SHARE * self._stall_timeout_s, 20 * self._usual_s))

    def _stuck(self, worker: str, heartbeat: LastHeartbeat, now: float, limit_s: float) -> bool:
        if not heartbeat.proven or now - heartbeat.moved <= limit_s:
            return False
        if heartbeat.phase in OWN:
            return self._waited_for(worker, heartbeat.generation, now, limit_s)
        return heartbeat.phase in WORKING

    def _waited_for(self, worker: str, generation: int, now: float, limit_s: float) -> bool:
        """Whether another worker of the generation has waited for so long: not all of them take their time together."""
        return any(
            p.phase in WAITING and now - p.moved > limit_s
            for other, p in self._heartbeats.items()
            # Servers, whose names begin with an s, always wait.
            if other != worker and p.generation == generation and not other.startswith("s")
        )


def _limit(heartbeat: LastHeartbeat, now: float) -> float:
    if heartbeat.moves < 0:
        return FIRST_BEAT_S
    if heartbeat.phase == "starting":
        return STARTING_S
    held = (
        now - heartbeat.ran <= BEAT_GONE_S
        and (heartbeat.cpu_s or 0.0) - (heartbeat.silent_cpu_s or 0.0) < HELD_S
    )
    return inf if held else BEAT_GONE_S
