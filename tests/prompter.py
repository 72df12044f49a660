"""One worker of a scripted cast: its coordinator and outlet, and its cues."""

import os
import signal
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from faults import ANY, Cue
from rooms import ROOM, SECRET
from waiting import wait_for

from ringleader.checkpoint.folder import MANIFEST
from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.timeline import TimelineStretch
from ringleader.comm.transports import Transport
from ringleader.comm.transports.meeting import KINDS, MeetingCall, meet
from ringleader.elastic import ParkReport
from ringleader.elastic import instructions as do
from ringleader.elastic.plan import Plan
from ringleader.errors import Dismissed, ExchangeBroken
from ringleader.train.generation.joining.donor import DONOR, JOINER
from ringleader.train.ports import FollowTask, Seat
from ringleader.train.program_check.background import CHECK
from ringleader.train.time_split import TimeSplit
from ringleader.wire.artifacts import SavedArtifact

LOOPBACK = "127.0.0.1"
HANG_GUARD_S = 90.0
DEADLINE_S = 30.0
DAWDLE_S, DAWDLES = 0.05, 10
"""After so many times, twice as long, and so on: a joiner may take long to be there."""
LONGEST_S = 5.0


class Prompter:
    """One worker's coordinator and outlet: talks to the stage over a pipe, and plays its cues."""

    def __init__(
        self,
        me: str,
        pipe: Connection,
        store: tuple[str, int],
        cues: tuple[Cue, ...],
        host: str = LOOPBACK,
        kinds: tuple[str, ...] = KINDS,
    ) -> None:
        self._host = host
        self._kinds = kinds
        self._me = me
        self._pipe = pipe
        self._store = store
        self._cues = list(cues)
        self._reached: Counter[tuple[int, str]] = Counter()
        self._pending = 0
        self._dawdled = self._asked = self._committed = 0
        self._followed = 0
        self._members: tuple[str, ...] = ()
        self._generation = 0
        self._interrupted = self._interrupts = self._heeded = 0
        self._recorded = 0
        self._met: list[Transport] = []
        self._donates = False
        self._unsaid: list[tuple[str, Any]] = []
        self._speaking = threading.Lock()
        self.awaits_check = False

    def next_seat(self, parked: ParkReport) -> Seat | FollowTask:
        self._cue(parked.step, "parked")
        self._let_out()
        self._say(("parked", replace(parked, followed=self._followed)))
        while True:
            kind, content = self._receive()
            if kind == "follow":
                self._followed, self._heeded = content, self._interrupts
                try:
                    return FollowTask(self._pair(content, JOINER), partial(self._in_sync, content))
                except ExchangeBroken as error:
                    self._say(("parked", replace(parked, why=str(error), followed=content)))
            if kind == "plan":
                plan: Plan = content
                self._generation, self._members = plan.generation, plan.members
                return Seat(plan, plan.rank_of(self._me), self._connect(plan))

    def joiners(self) -> list[Transport]:
        while self._pipe.poll():
            self._receive()
        if self._donates:
            self._cue(ANY, "donating")
        if self._met:
            self._cue(ANY, "met")
        met, self._met = self._met, []
        self._donates = self._donates or bool(met)
        return met

    def plan_pending(self) -> bool:
        while self._pipe.poll():
            self._receive()
        return self._pending > self._generation

    def interrupted(self) -> bool:
        while self._pipe.poll():
            self._receive()
        if not self._generation:
            return self._interrupts > self._heeded
        return self._interrupted >= self._generation

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        self._unsaid.append(("metrics", (step, values)))

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        self._unsaid.append(("ledger", (step, shards, rows)))

    def trace(self, stretch: TimelineStretch) -> None:
        self._say(("trace", (self._me, stretch)))

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        self._say(("event", do.Report(kind, generation, data)))

    def artifact(self, artifact: SavedArtifact) -> None:
        self._unsaid.append(("artifact", artifact))

    def saved(self, saved: SavedPart) -> None:
        self._say(("saved", saved))

    def settled(self, step: int) -> None: ...

    def replayed(self) -> None: ...

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        if phase == "committed":
            self._say(("committed", (self._generation, step)))
            self._committed = step
        self._cue(step, phase)
        self._let_out()
        self._linger()
        if self.awaits_check and phase == "forward":
            await_check()

    def between(self, call: int) -> None:
        pass

    def within(self, *, told: bool = True) -> None:
        pass

    def timed(self, split: TimeSplit) -> None:
        pass

    def recorded_step(self) -> int:
        return self._recorded

    def handed_over(self, timeout_s: float) -> bool:
        self._cue(ANY, "handing over")
        self._let_out()
        return True

    def leave(self) -> None:
        """It has passed the last barrier, and nobody knows yet."""
        self._cue(ANY, "gone")

    def _let_out(self) -> None:
        """Records wait for the next words, as they wait for a heartbeat: whoever dies before takes them along."""
        unsaid, self._unsaid = self._unsaid, []
        for news in unsaid:
            self._say(news)
            if news[0] == "metrics":
                self._recorded = news[1][0] + 1

    def _say(self, news: tuple[str, Any]) -> None:
        with self._speaking:
            self._pipe.send(news)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _receive(self) -> tuple[str, Any]:
        if not self._pipe.poll(HANG_GUARD_S):
            raise AssertionError(f"{self._me} heard nothing for {HANG_GUARD_S} s")
        kind, content = self._pipe.recv()
        if kind == "dismiss":
            raise Dismissed
        if kind == "announce":
            self._pending = content
        if kind == "interrupt":
            self._interrupted = content
            self._interrupts += 1
        if kind == "asked":
            self._asked += 1
        if kind == "donate":
            with suppress(ExchangeBroken):
                self._met.append(self._pair(content, DONOR))
        return kind, content

    def _connect(self, plan: Plan) -> Transport | None:
        if len(plan.members) == 1:
            return None
        prefix, rank = f"{ROOM}/{plan.attempt}.{plan.generation}", plan.rank_of(self._me)
        return meet(
            MeetingCall(
                *self._store,
                prefix,
                rank,
                len(plan.members),
                DEADLINE_S,
                SECRET,
                host=self._host,
                kinds=self._kinds,
            )
        )

    def _pair(self, number: int, rank: int) -> Transport:
        return meet(
            MeetingCall(*self._store, f"{ROOM}/pair/{number}", rank, 2, DEADLINE_S, SECRET, host=self._host)
        )

    def _in_sync(self, pair: int) -> None:
        self._cue(ANY, "in_sync")
        self._say(("in_sync", pair))

    def _cue(self, step: int, phase: str) -> None:
        places = [(step, phase), (ANY, phase)]
        reached = [(*place, self._reached[place]) for place in places]
        self._reached.update(places)
        self._dawdle(step, phase)
        acts = [cue for cue in self._cues if cue.act not in ("dawdle", "linger")]
        steps = {cue: max(cue.step, step) if cue.later else cue.step for cue in acts}
        for cue in [cue for cue in acts if (steps[cue], cue.phase, cue.past) in reached]:
            self._cues.remove(cue)
            if cue.act == "kill":
                if cue.sign != Path():
                    self._let_out()  # heartbeats go on
                    await_checkpoint(cue.sign)
                self.die()
            if cue.act == "stumble":
                await_file(cue.sign)
                raise ExchangeBroken(rank=-1, phase=phase, bucket=None, why="the script says so")
            while not (self._heard_of(cue.generation) or cue.joined in self._members):
                self._receive()

    def _heard_of(self, generation: int) -> bool:
        """Whether that generation is coming; also where whom this worker follows is gone."""
        stray = self._generation == 0 and self._interrupted > 0
        return max(self._pending, self._generation) >= generation or stray

    def _dawdle(self, step: int, phase: str) -> None:
        for cue in [c for c in self._cues if c.act == "dawdle" and c.phase == phase and c.step <= step]:
            if not self._heard_of(cue.generation) and self._generation >= cue.since:
                self._dawdled += 1
                wait_s = DAWDLE_S * (1 + self._dawdled // DAWDLES) * cue.longer**self._dawdled
                if self._pipe.poll(min(wait_s, LONGEST_S)):
                    self._receive()

    def _linger(self) -> None:
        for cue in [c for c in self._cues if c.act == "linger"]:
            if self._generation >= cue.since and self._committed >= cue.step:
                self._cues.remove(cue)
                while not (self._lingered(cue) or self._interrupted >= self._generation):
                    self._receive()

    def _lingered(self, cue: Cue) -> bool:
        asked = cue.asked and self._asked > 0
        return asked or self._heard_of(cue.generation) or cue.joined in self._members


def await_checkpoint(folder: Path) -> None:
    wait_for(
        f"checkpoint in {folder}",
        lambda: folder.is_file() or [*folder.glob(MANIFEST), *folder.glob(f"*/{MANIFEST}")],
        HANG_GUARD_S,
    )


def await_check() -> None:
    """One that is under way beside this worker is over, whatever came of it."""
    for thread in threading.enumerate():
        if thread.name == CHECK:
            thread.join(HANG_GUARD_S)
            assert not thread.is_alive(), "the check beside the job hangs"


def await_file(path: Path) -> None:
    wait_for(f"file {path}", path.exists, HANG_GUARD_S)
