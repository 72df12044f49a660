"""A scripted cast: real worker processes over gloo, the real membership machine, no Ray, and faults on cue.

    play = Cast(spec, train, cues=FaultPlan().kill("w2", at_step=5)).play()

Workers are forked by a server that has torch loaded, so that a play of a small model takes about a second.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import spares
import torch
from faults import FaultPlan
from forks import processes
from play import Play
from prompter import DEADLINE_S, HANG_GUARD_S, LOOPBACK, Prompter
from rooms import open_room

from ringleader.checkpoint.committer import Committer
from ringleader.checkpoint.folder import Folder
from ringleader.comm.transports.meeting import DEVICE_KINDS, KINDS
from ringleader.elastic import events as ev
from ringleader.elastic import instructions as do
from ringleader.elastic.membership import begin, handle
from ringleader.elastic.state import AttemptRules, Membership, Phase
from ringleader.errors import Dismissed, EntrypointRaised, RingleaderError
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.program_check.background import CheckWorkspace
from ringleader.train.run import function_of, run

CHECKS = 2
"""A worker checks its program so often at most."""


def act(
    me: str, pipe: Connection, store: tuple[str, int], script: "Cast", server: bool, artifacts: Path
) -> None:
    """A worker process."""
    spares.keep((script.checkpoints is not None) + (0 if script.beside is None else CHECKS))
    torch.set_num_threads(1)
    cues = tuple(c for c in script.cues.cues if c.worker == me)
    kinds = DEVICE_KINDS if script.spec.workers.gpus else KINDS
    prompter = Prompter(me, pipe, store, cues, f"127.0.0.{1 + script.nodes.get(me, 0)}", kinds)
    prompter.awaits_check = script.beside is not None
    try:
        end: Any = run(
            spec=script.spec,
            function=script.train or function_of(script.spec),
            coordinator=prompter,
            sink=prompter,
            server=server,
            artifacts=artifacts,
            checkpoints=script.checkpoints,
            copies=script.artifacts / "copies" / f"node-{script.nodes.get(me, 0)}",
            beside=script.beside,
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
        train: the training function; None: that of the job file's entrypoint.
        joiners_follow: joiners ask and follow a member while the group goes on, so nobody may `hold` for them.
        beside: where the program is checked beside the job; forwards wait for the check.
        nodes: who believes to live elsewhere than on node 0: members of different nodes share no memory.
    """

    spec: JobSpec
    train: Callable[[Session], None] | None
    cues: FaultPlan = field(default_factory=FaultPlan)
    artifacts: Path = Path("unused")
    nodes: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 1
    checkpoints: str | None = None
    joiners_follow: bool = False
    beside: CheckWorkspace | None = None

    def play(self) -> Play:
        self._play = Play()
        self._pipes: dict[str, Connection] = {}
        self._processes: dict[str, Any] = {}
        self._resizes = list(self.cues.resizes)
        self._pauses = list(self.cues.pauses)
        self._drains = list(self.cues.drains)
        self._evictions = list(self.cues.evictions)
        self._committer: Committer | None = None
        self._applied = 0
        if self.checkpoints is not None:
            folder, keep = Folder(self.checkpoints), self.spec.checkpoint.keep
            self._committer = Committer(folder, keep=keep, spec=self.spec.model_dump(mode="json"))
        workers = self.spec.workers
        rules = AttemptRules(
            attempt=self.attempt,
            shards=self.spec.shards,
            servers=self.spec.sync.server_count,
            copies=self.spec.sync.servers_are_copies,
            backups=self.spec.sync.server_backups or 0,
            joiners_follow=self.joiners_follow and self.spec.briefed,
            own_step_counts=self.spec.sync.circulates,
            secures=self.checkpoints is not None and self.spec.checkpoint.every_s is not None,
            max_failures=self.spec.max_failures,
            grace_s=HANG_GUARD_S,
            join_grace_s=HANG_GUARD_S,
            in_sync_s=HANG_GUARD_S,
        )
        self._state, instructions = begin(
            rules, workers_min=workers.min, workers_max=workers.max, now=time.monotonic()
        )
        with self._room() as self._store:
            try:
                self._carry_out(instructions)
                give_up_at = time.monotonic() + HANG_GUARD_S
                while not self._play.outcome:
                    assert time.monotonic() < give_up_at, f"the play hangs: {self._state}"
                    self._listen()
                    if self._play.plans:  # what is asked for at step 0 comes before anybody commits
                        self._resize(0)
            finally:
                for process in self._processes.values():
                    process.kill()
                    process.join(HANG_GUARD_S)
        return self._play

    @contextmanager
    def _room(self) -> Iterator[tuple[str, int]]:
        """Where members meet, while the play lasts: open after it, its socket and thread would stay for good."""
        with closing(open_room()) as store:
            yield LOOPBACK, store.port

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
        self._handle(ev.Tick(time.monotonic(), patience_s=DEADLINE_S))

    def _too_early(self, name: str) -> bool:
        """A newcomer is heard once the survivors of a loss, if they are enough, have gone on without it: on a loaded
        machine it may be there before the last of them has noticed, and a play's worlds shall not depend on that."""
        state = self._state
        worker = state.find(name)
        new = worker is not None and worker.phase is Phase.STARTING
        return new and state.broken and len(state.pool) >= state.workers_min

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
                worker = self._state.find(name)
                if worker is not None and worker.phase is Phase.FOLLOWING and said.call > worker.call:
                    self._play.briefed.append(name)
                self._handle(ev.Parked(name, now, said))
            case "in_sync":
                self._play.in_sync.append(name)
                self._handle(ev.InSync(name, now, content))
            case "event":
                self._play.reports.append(content)
            case "saved":
                assert self._committer is not None
                self._committer.add(content)
                self._settle(content.position.step if content.settled else self._settled)
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
            case "artifact":
                self._play.artifacts.append(content)
            case "ledger":
                self._play.rows.append(content)
            case "finished":
                self._play.finished[name] = content
                self._handle(
                    ev.Finished(
                        name,
                        content.digest,
                        now,
                        content.reproducible_why if self.spec.sync.same_bits else "",
                    )
                )
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
        for eviction in [e for e in self._evictions if e[0] <= step]:
            self._evictions.remove(eviction)
            self._handle(ev.Evict(eviction[1], "frozen", time.monotonic()))

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
                case do.Follow(worker=worker, donor=donor, number=number):
                    self._play.pairs.append(instruction)
                    for listener in {cue.worker for cue in self.cues.cues if cue.asked}:
                        self._tell(listener, "asked", number)
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
        process = processes().Process(
            target=act,
            args=(
                worker,
                there,
                self._store,
                replace(self, artifacts=self.artifacts),
                server,
                self.artifacts,
            ),
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
