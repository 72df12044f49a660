"""A scripted cast: real worker processes over gloo, the real membership machine, no Ray, and faults on cue.

    play = Cast(spec, train, cues=FaultPlan().kill("w2", at_step=5)).play()

Workers are forked by a server that has torch loaded, so that a play of a small model takes about a second.
"""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faults import ANY, Cue, FaultPlan
from forks import processes
from torch.distributed import TCPStore

from ringleader.checkpoint.committer import Committed, Committer
from ringleader.checkpoint.folder import MANIFEST, Folder
from ringleader.checkpoint.manifest import Saved
from ringleader.comm.timeline import Stretch
from ringleader.comm.transports import Transport
from ringleader.comm.transports.meeting import Call, meet
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do
from ringleader.elastic.membership import begin, handle
from ringleader.elastic.plan import Plan
from ringleader.elastic.state import Membership, Phase, Rules
from ringleader.errors import Dismissed, EntrypointRaised, ExchangeBroken, RingleaderError
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.donating import DONOR, JOINER
from ringleader.train.run import Finished, run
from ringleader.train.seams import Parked, Seat, Shadow

LOOPBACK = "127.0.0.1"
HANG_GUARD_S = 90.0
DEADLINE_S = 30.0
DAWDLE_S = 0.05


@dataclass
class Play:
    """What came of it. `values` and `rows` are what rank 0 let out, in the order it did."""

    outcome: str = ""
    reason: str = ""
    message: str = ""
    finished: dict[str, Finished] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    reports: list[do.Report] = field(default_factory=list)
    values: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    rows: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    checkpoints: list[Committed] = field(default_factory=list)
    stretches: list[tuple[str, Stretch]] = field(default_factory=list)
    pairs: list[do.Shadow] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        digests = {f.digest for f in self.finished.values()}
        assert len(digests) == 1, digests
        return digests.pop()

    @property
    def worlds(self) -> list[int]:
        return [plan.world for plan in self.plans]

    def reported(self, kind: str) -> list[dict[str, Any]]:
        return [report.data for report in self.reports if report.type == kind]

    def settled_rows(self) -> list[tuple[int, int, int]]:
        """(step, shard, row) of every settled row; a step that is repeated counts again."""
        return [
            (step, int(shard), int(row))
            for step, shards, rows in self.rows
            for shard, row in zip(shards, rows, strict=True)
        ]


class Prompter:
    """One worker's coordinator and outlet: talks to the stage over a pipe, and plays its cues."""

    def __init__(
        self, me: str, pipe: Connection, store: tuple[str, int], cues: tuple[Cue, ...], host: str = LOOPBACK
    ) -> None:
        self._host = host
        self._me = me
        self._pipe = pipe
        self._store = store
        self._cues = list(cues)
        self._reached: Counter[tuple[int, str]] = Counter()
        self._pending = 0
        self._followed = 0
        self._members: tuple[str, ...] = ()
        self._generation = 0
        self._interrupted = 0
        self._recorded = 0
        self._met: list[Transport] = []
        self._donates = False
        self._unsaid: list[tuple[str, Any]] = []
        self._speaking = threading.Lock()

    def next_seat(self, parked: Parked) -> Seat | Shadow:
        self._cue(parked.step, "parked")
        self._let_out()
        self._say(("parked", replace(parked, followed=self._followed)))
        while True:
            kind, content = self._receive()
            if kind == "follow":
                self._followed = content
                try:
                    return Shadow(self._pair(content, JOINER), partial(self._level, content))
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
        return self._interrupted >= self._generation

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        self._unsaid.append(("metrics", (step, values)))

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        self._unsaid.append(("ledger", (step, shards, rows)))

    def trace(self, stretch: Stretch) -> None:
        self._say(("trace", (self._me, stretch)))

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        self._say(("event", do.Report(kind, generation, data)))

    def saved(self, saved: Saved) -> None:
        self._say(("saved", saved))

    def settled(self, step: int) -> None: ...

    def replayed(self) -> None: ...

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        if phase == "committed":
            self._say(("committed", (self._generation, step)))
        self._cue(step, phase)
        self._let_out()

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
        if kind == "donate":
            with suppress(ExchangeBroken):
                self._met.append(self._pair(content, DONOR))
        return kind, content

    def _connect(self, plan: Plan) -> Transport | None:
        if len(plan.members) == 1:
            return None
        prefix, rank = f"{plan.attempt}/{plan.generation}", plan.rank_of(self._me)
        return meet(Call(*self._store, prefix, rank, len(plan.members), DEADLINE_S, host=self._host))

    def _pair(self, number: int, rank: int) -> Transport:
        return meet(Call(*self._store, f"pair/{number}", rank, 2, DEADLINE_S, host=self._host))

    def _level(self, pair: int) -> None:
        self._cue(ANY, "level")
        self._say(("level", pair))

    def _cue(self, step: int, phase: str) -> None:
        places = [(step, phase), (ANY, phase)]
        reached = [(*place, self._reached[place]) for place in places]
        self._reached.update(places)
        self._dawdle(step, phase)
        due = [
            cue for cue in self._cues if (cue.step, cue.phase, cue.past) in reached and cue.act != "dawdle"
        ]
        for cue in due:
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
            if self._pending < cue.generation and self._pipe.poll(DAWDLE_S):
                self._receive()


def await_checkpoint(folder: Path) -> None:
    until = time.monotonic() + HANG_GUARD_S
    while not folder.is_file() and not [*folder.glob(MANIFEST), *folder.glob(f"*/{MANIFEST}")]:
        assert time.monotonic() < until, f"no checkpoint came into {folder}"


def await_file(path: Path) -> None:
    until = time.monotonic() + HANG_GUARD_S
    while not path.exists():
        assert time.monotonic() < until, f"nobody made {path}"


def act(
    me: str, pipe: Connection, store: tuple[str, int], script: "Cast", server: bool, artifacts: Path
) -> None:
    """A worker process."""
    torch.set_num_threads(1)
    cues = tuple(c for c in script.cues.cues if c.worker == me)
    prompter = Prompter(me, pipe, store, cues, f"127.0.0.{1 + script.nodes.get(me, 0)}")
    try:
        end: Any = run(
            spec=script.spec,
            function=script.train,
            coordinator=prompter,
            outlet=prompter,
            server=server,
            artifacts=artifacts,
            checkpoints=script.checkpoints,
            copies=script.artifacts / "copies" / f"node-{script.nodes.get(me, 0)}",
        )
        prompter.leave()
        pipe.send(("finished", end))
    except Dismissed:
        pass
    except EntrypointRaised as error:
        pipe.send(("raised", (error.step, error.shard, error.message)))
    except RingleaderError as error:
        pipe.send(("failed", (error.code, str(error))))
    pipe.close()


@dataclass
class Cast:
    """The stage: the membership machine with processes at its edge.

    Attributes:
        shadows: joiners follow a member while the group goes on, so nobody may `hold` for them.
        nodes: who believes to live elsewhere than on node 0: members of different nodes share no memory.
    """

    spec: JobSpec
    train: Callable[[Session], None]
    cues: FaultPlan = field(default_factory=FaultPlan)
    artifacts: Path = Path("unused")
    nodes: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 1
    checkpoints: str | None = None
    shadows: bool = False

    def play(self) -> Play:
        self._store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        self._play = Play()
        self._pipes: dict[str, Connection] = {}
        self._processes: dict[str, Any] = {}
        self._resizes = list(self.cues.resizes)
        self._pauses = list(self.cues.pauses)
        self._drains = list(self.cues.drains)
        self._committer: Committer | None = None
        self._applied = 0
        if self.checkpoints is not None:
            folder, keep = Folder(self.checkpoints), self.spec.checkpoint.keep
            self._committer = Committer(folder, keep=keep, spec=self.spec.model_dump(mode="json"))
        workers = self.spec.workers
        rules = Rules(
            attempt=self.attempt,
            shards=self.spec.shards,
            servers=self.spec.sync.server_count,
            copies=self.spec.sync.servers_are_copies,
            backups=self.spec.sync.server_backups or 0,
            shadows=self.shadows and self.spec.followed,
            unlevelled=self.spec.sync.circulates,
            max_failures=self.spec.max_failures,
        )
        self._state, instructions = begin(
            rules, minimum=workers.min, maximum=workers.max, now=time.monotonic()
        )
        try:
            self._carry_out(instructions)
            give_up_at = time.monotonic() + HANG_GUARD_S
            while not self._play.outcome:
                assert time.monotonic() < give_up_at, f"the play hangs: {self._state}"
                self._listen()
        finally:
            for process in self._processes.values():
                process.kill()
                process.join(10)
        return self._play

    def _listen(self) -> None:
        sentinels = {p.sentinel: name for name, p in self._processes.items()}
        pipes = [pipe for name, pipe in self._pipes.items() if not self._too_early(name)]
        heard = wait([*pipes, *sentinels], timeout=0.05)
        for name, pipe in list(self._pipes.items()):
            if pipe in heard and not self._too_early(name):
                self._hear(name, pipe)
        for sentinel, name in sentinels.items():
            if sentinel in heard:
                self._drain(name)
                del self._processes[name]
                self._handle(ev.Lost(name, "killed", time.monotonic()))
        self._handle(ev.Tick(time.monotonic(), patience_s=10.0))

    def _too_early(self, name: str) -> bool:
        """A newcomer is heard once the survivors of a loss, if they are enough, have gone on without it: on a loaded
        machine it may be there before the last of them has noticed, and a play's worlds shall not depend on that."""
        state = self._state
        worker = state.find(name)
        new = worker is not None and worker.phase is Phase.STARTING
        return new and state.broken and len(state.pool) >= state.min

    def _drain(self, name: str) -> None:
        """A dead worker's last words come before its death."""
        pipe = self._pipes.get(name)
        while pipe is not None and name in self._pipes and pipe.poll():
            self._hear(name, pipe)

    def _hear(self, name: str, pipe: Connection) -> None:
        try:
            kind, content = pipe.recv()
        except (EOFError, OSError):
            self._pipes.pop(name, None)
            return
        now = time.monotonic()
        match kind:
            case "parked":
                said = content
                place = (said.generation, said.applied, said.step)
                self._handle(ev.Parked(name, *place, said.why, now, said.followed, said.astray))
            case "level":
                self._play.levels.append(name)
                self._handle(ev.Level(name, now, content))
            case "event":
                self._play.reports.append(content)
            case "saved":
                assert self._committer is not None
                self._committer.add(content)
                self._settle(self._settled)
            case "committed":
                self._applied = max(self._applied, content[1])
                self._settle(self._settled)
                self._handle(ev.Committed(name, *content, now))
                self._resize(content[1])
            case "trace":
                self._play.stretches.append(content)
            case "metrics":
                self._play.values.append(content)
                self._settle(self._settled)
            case "ledger":
                self._play.rows.append(content)
            case "finished":
                self._play.finished[name] = content
                self._handle(ev.Finished(name, content.digest, now))
            case "raised":
                self._handle(ev.Raised(name, *content, now))
            case "failed":
                self._handle(ev.Failed(name, *content, now))

    @property
    def _recorded(self) -> int:
        return max((step for step, _ in self._play.values), default=-1) + 1

    @property
    def _settled(self) -> int:
        """As the supervisor has it: no checkpoint knows more than the records that are here."""
        return min(self._applied, self._recorded) - 1

    def _settle(self, step: float) -> None:
        committed = self._committer.settle(step) if self._committer is not None else None
        if committed is not None:
            self._play.checkpoints.append(committed)

    def _resize(self, step: int) -> None:
        for cue in [r for r in self._resizes if r[0] <= step]:
            self._resizes.remove(cue)
            self._handle(ev.Resize(cue[1], cue[2], time.monotonic()))
        for due in [at for at in self._pauses if at <= step]:
            self._pauses.remove(due)
            self._handle(ev.Pause(HANG_GUARD_S, time.monotonic()))
        for drain in [d for d in self._drains if d[0] <= step]:
            self._drains.remove(drain)
            self._handle(ev.Drain(drain[1], time.monotonic(), time.monotonic()))

    def _handle(self, event: ev.Event) -> None:
        state: Membership = self._state
        self._state, instructions = handle(state, event)
        self._carry_out(instructions)

    def _carry_out(self, instructions: tuple[do.Instruction, ...]) -> None:
        for instruction in instructions:
            match instruction:
                case do.Start(worker=worker, role=role):
                    self._start(worker, role == "server")
                case do.Announce(worker=worker, generation=generation):
                    self._tell(worker, "announce", generation)
                case do.Interrupt(worker=worker, generation=generation):
                    self._tell(worker, "interrupt", generation)
                case do.Shadow(worker=worker, donor=donor, number=number):
                    self._play.pairs.append(instruction)
                    self._tell(worker, "follow", number)
                    self._tell(donor, "donate", number)
                case do.Form(plan=plan):
                    self._play.plans.append(replace(plan, recorded_step=self._recorded))
                    for member in plan.members:
                        self._tell(member, "plan", self._play.plans[-1])
                case do.Dismiss(worker=worker):
                    self._tell(worker, "dismiss", None)
                case do.Kill(worker=worker):
                    self._processes[worker].kill()
                case do.Report():
                    self._play.reports.append(instruction)
                case do.End():
                    if instruction.outcome in ("succeeded", *do.SAVED):
                        self._settle(inf)
                    self._play.outcome = instruction.outcome
                    self._play.reason, self._play.message = instruction.reason, instruction.message

    def _start(self, worker: str, server: bool) -> None:
        here, there = processes().Pipe()
        store = (LOOPBACK, self._store.port)
        process = processes().Process(
            target=act,
            args=(worker, there, store, replace(self, artifacts=self.artifacts), server, self.artifacts),
            name=worker,
        )
        process.start()
        there.close()
        self._pipes[worker], self._processes[worker] = here, process
        self._play.pids[worker] = process.pid or 0

    def _tell(self, worker: str, kind: str, content: Any) -> None:
        pipe = self._pipes.get(worker)
        found = self._state.find(worker)
        if pipe is None or (found and found.phase is Phase.FINISHED):
            return
        with suppress(OSError):  # it is gone, but what it said last is still to be heard
            pipe.send((kind, content))
