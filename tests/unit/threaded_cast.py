"""A cast whose workers are threads of this process: the real membership machine and sessions, transfers in memory.

Cheap enough for many seeded plays. Networks must draw no random number after their making: the generator is shared.
"""

import threading
import traceback
from collections import Counter
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cast import Cast
from play import Play
from prompter import Prompter
from torch import Tensor
from waiting import wait_for

from ringleader.comm.transports import Transport, Work
from ringleader.comm.transports.inprocess import Hub
from ringleader.elastic import ParkReport
from ringleader.elastic.plan import Plan
from ringleader.errors import Dismissed, EntrypointRaised, RingleaderError
from ringleader.train.ports import FollowTask, Seat
from ringleader.train.run import run


class Killed(BaseException):
    """Unwinds a worker that the script has killed."""


@dataclass(frozen=True)
class Shot:
    """A worker dies at its `nth` transfer with a server that has this tag, before it is begun.

    Attributes:
        server: counted among the servers.
        lags: it does not die, but begins the transfer only once that server has left the generation.
    """

    worker: str
    server: int
    tag: int
    nth: int
    sends: bool = True
    lags: bool = False


@dataclass
class Life:
    """Stands in for a process: `kill` makes every later step of the worker fail."""

    pipe: Connection
    sentinel: Connection
    ended: Connection
    dead: bool = False
    transports: list[Transport] = field(default_factory=list)
    thread: threading.Thread | None = None

    def kill(self) -> None:
        self.dead = True
        for transport in self.transports:
            transport.abort()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end. One that waits for word, which would not come any more, is given one."""
        assert self.thread is not None
        with suppress(OSError):  # it has closed its end
            self.pipe.send(("killed", None))
        self.thread.join(timeout_s)


class Aimed:
    """A transport that plays a worker's shots. Implements Transport."""

    shared = False
    together = None

    def __init__(
        self,
        hub: Hub,
        inner: Transport,
        plan: Plan,
        shots: list[Shot],
        life: Life,
        fired: threading.Event,
    ) -> None:
        self.rank, self.size, self.groups = inner.rank, inner.size, inner.groups
        self.seal = inner.seal
        self.sent: Counter[tuple[int, int]] = Counter()
        self._hub = hub
        self._inner = inner
        self._first = plan.world
        self._shots = shots
        self._life = life
        self._fired = fired
        self._counts: dict[tuple[int, int, bool], int] = {}
        self._lock = threading.Lock()

    @property
    def over(self) -> str:
        return self._inner.over

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        self._aim(peer, tag, sends=True)
        self.sent[peer, tag] += tensor.nbytes
        return self._inner.isend(tensor, peer, tag)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        self._aim(peer, tag, sends=False)
        return self._inner.irecv(tensor, peer, tag)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        return self._inner.native_all_reduce(tensor)

    def board(self, slots: int, rows: int) -> None:
        return None

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()

    def _aim(self, peer: int, tag: int, *, sends: bool) -> None:
        with self._lock:
            key = (peer - self._first, tag, sends)
            nth = self._counts[key] = self._counts.get(key, -1) + 1
        for shot in [s for s in self._shots if (s.server, s.tag, s.sends, s.nth) == (*key, nth)]:
            if shot.lags:
                wait_for("break", lambda: self._hub.why_gone(peer) or self.over)
            else:
                self._life.kill()
                self._fired.set()


class ThreadPrompter(Prompter):
    """The same, with transfers through the play's hubs."""

    def __init__(self, me: str, pipe: Connection, stage: "ThreadedCast", life: Life) -> None:
        super().__init__(me, pipe, ("", 0), tuple(c for c in stage.cues.cues if c.worker == me))
        self._stage = stage
        self._life = life

    def next_seat(self, parked: ParkReport) -> Seat | FollowTask:
        self._live()
        return super().next_seat(parked)

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        self._live()
        super().progress(step=step, total_steps=total_steps, epoch=epoch, phase=phase, rows=rows)

    def interrupted(self) -> bool:
        # Else a dead one that has no seat passes the calls that are over, and runs the lines between them.
        self._live()
        return super().interrupted()

    def die(self) -> None:
        self._life.kill()
        raise Killed

    def _live(self) -> None:
        if self._life.dead:
            raise Killed

    def _receive(self) -> tuple[str, Any]:
        self._live()
        word = super()._receive()
        self._live()
        return word

    def _pair(self, number: int, rank: int) -> Transport:
        transport = self._stage.pair(number).transport(rank)
        self._life.transports.append(transport)
        return transport

    def _connect(self, plan: Plan) -> Transport | None:
        if len(plan.members) == 1:
            return None
        hub = self._stage.hub(plan)
        # Who lags does so in the generation that the others' shots break.
        past = self._stage.fired.is_set()
        shots = [s for s in self._stage.shots if s.worker == self._me and not (s.lags and past)]
        inner = hub.transport(plan.rank_of(self._me), self._stage.groups(plan))
        transport = Aimed(hub, inner, plan, shots, self._life, self._stage.fired)
        self._life.transports.append(transport)
        self._stage.links.append(transport)
        return transport


@dataclass
class ThreadedCast(Cast):
    """The stage with threads. `fired` is set by a shot; `links` are all ends of all generations."""

    shots: tuple[Shot, ...] = ()
    fired: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._hubs: dict[int, Hub] = {}
        self._pairs: dict[int, Hub] = {}
        self.links: list[Aimed] = []
        self._ends: list[Connection] = []
        self._making = threading.Lock()

    def play(self) -> Play:
        try:
            return super().play()
        finally:
            for end in self._ends:
                end.close()

    @property
    def formed(self) -> list[Plan]:
        """The plans so far, also from another thread."""
        return self._play.plans if hasattr(self, "_play") else []

    def hub(self, plan: Plan) -> Hub:
        with self._making:
            return self._hubs.setdefault(plan.generation, Hub(len(plan.members), 30.0))

    def pair(self, number: int) -> Hub:
        with self._making:
            return self._pairs.setdefault(number, Hub(2, 30.0))

    def groups(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """The ranks of each pretended node; empty where there are none."""
        homes = {rank: self.nodes.get(member, 0) for rank, member in enumerate(plan.members)}
        nodes = sorted(set(homes.values())) if self.nodes else []
        return tuple(tuple(rank for rank, home in homes.items() if home == node) for node in nodes)

    def _room(self) -> AbstractContextManager[tuple[str, int]]:
        """Nobody connects: transfers are in memory."""
        return nullcontext(("", 0))

    def _start(self, worker: str, server: bool) -> None:
        here, there = Pipe()
        sentinel, ended = Pipe()
        self._ends += here, sentinel
        life = Life(here, sentinel, ended)
        life.thread = threading.Thread(
            target=self._act, args=(worker, there, life, server), name=worker, daemon=True
        )
        self._pipes[worker], self._processes[worker] = here, life
        life.thread.start()

    def _act(self, worker: str, pipe: Connection, life: Life, server: bool) -> None:
        prompter = ThreadPrompter(worker, pipe, self, life)
        try:
            end = run(
                spec=self.spec,
                function=self.train,
                coordinator=prompter,
                sink=prompter,
                server=server,
                artifacts=Path(self.artifacts) / worker,
                checkpoints=self.checkpoints,
            )
            prompter.leave()
            pipe.send(("finished", end))
        except (Dismissed, Killed):
            pass
        except EntrypointRaised as error:
            pipe.send(("raised", (error.step, error.shard, error.message)))
        except RingleaderError as error:
            pipe.send(("failed", (error.code, str(error))))
        except Exception:  # a process would end with it
            pipe.send(("failed", ("platform_error", traceback.format_exc())))
        finally:
            # A pipe that is closed with unread news in it takes its last words along: it stays open.
            self._ends.append(pipe)
            with suppress(OSError):
                life.ended.close()
