"""The two seams between a training session and the world around it. `runtime/` implements them over Ray; `local.py`
in one process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.timeline import TimelineStretch
from ringleader.comm.transports import Transport
from ringleader.elastic import Plan
from ringleader.train.time_split import TimeSplit


@dataclass(frozen=True, slots=True)
class ParkReport:
    """What a worker says when it waits for a plan.

    Attributes:
        generation: the generation it leaves; 0 before its first.
        applied: transactions it has applied: steps and finished evaluations. What `Plan.start_step` counts.
        step: global steps it has applied; of a server those that its part of the state has, -1 where it has not got
            that part. Where items are leased for what people read only.
        why: empty at a planned boundary or before the first plan, else the sentence of the broken exchange.
        followed: the number of the last pair in which it followed a member, 0 before any.
        astray: it followed one to its boundary, and this differs from what that one holds: it has to be healed.
        call: the number of the session call to which its program has come.
        caught_up: before its first seat it has run the program's lines up to the call of a member, and there is nothing
            to follow.
    """

    generation: int
    applied: int
    step: int
    why: str
    followed: int = 0
    astray: str = ""
    call: int = 0
    caught_up: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a plan. `transport` is None when it is the only member."""

    plan: Plan
    rank: int
    transport: Transport | None


@dataclass(frozen=True, slots=True)
class FollowTask:
    """Before its first seat a worker asks a member what of the program is over, and follows it where it can.

    Attributes:
        transport: to the member, who has rank 0; this worker has rank 1.
        level: says that this worker has all that the member has.
    """

    transport: Transport
    level: Callable[[], None]


class Coordinator(Protocol):
    """How a session learns who belongs. Called from the training thread."""

    def next_seat(self, parked: ParkReport) -> Seat | FollowTask:
        """Report, then wait for the next plan and connect to its members, or to the one to follow until it asks again.
        Raises Dismissed when this worker leaves."""

    def joiners(self) -> list[Transport]:
        """Connections to those who have come since the last call to follow this member: it has rank 0 there."""

    def plan_pending(self) -> bool:
        """Whether a newer plan has been announced: the step that says so is the last of its generation."""

    def interrupted(self) -> bool:
        """Whether the running generation was given up: what was computed since the last commit is for nothing. Before
        the first seat: whether this worker shall say again that it waits for one, wherever in the program it is."""


class RecordSink(Protocol):
    """Where settled records leave the worker. Rank 0 reports; every member keeps what is not yet acknowledged."""

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        """All values of one settled step."""

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        """The settled rows of one step: (n,) int32 shard and (n,) int64 row of the dataset, checked against the
        checksums that travelled with the gradients."""

    def trace(self, stretch: TimelineStretch) -> None:
        """What a worker did when, for steps that are just committed; to be kept until they are settled."""

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        """Something that happened and that no step can take back."""

    def saved(self, saved: SavedPart) -> None:
        """This member's files of a checkpoint are written. From any thread."""

    def settled(self, step: int) -> None:
        """All steps below `step` are settled: log lines printed before may leave."""

    def replayed(self) -> None:
        """The running step starts over: log lines of it are dropped."""

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        """Newest committed step and what the training thread does now (forward, backward, exchange, update, committed,
        evaluate, finish, parked; between: the program's own code beside all that): sent with the next heartbeat. `rows`
        owned scale the stall deadline."""

    def between(self, call: int) -> None:
        """From now on, until `within`, the program's own lines before that session call run: every member runs them, a
        joiner again, and what they print is told once."""

    def within(self, *, told: bool = True) -> None:
        """From now on, until `between`, a call runs; what it prints here is this member's own. Not `told`: a body runs
        where nothing comes of it."""

    def timed(self, split: TimeSplit) -> None:
        """The clock of the session that begins: what it says is sent with each heartbeat."""

    def recorded_step(self) -> int:
        """Records of steps below this are stored by the supervisor."""

    def handed_over(self, timeout_s: float) -> bool:
        """Wait at most so long until all records, events and files of checkpoints told so far are stored by the
        supervisor. Returns whether they are."""
