"""The two seams between a training session and the world around it. `runtime/` implements them over Ray; `local.py`
in one process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.timeline import TimelineStretch
from ringleader.comm.transports import Transport
from ringleader.elastic import ParkReport, Plan
from ringleader.errors import ExchangeBroken
from ringleader.train.time_split import TimeSplit
from ringleader.wire.artifacts import SavedArtifact


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a plan. `transport` is None when it is the only member."""

    plan: Plan
    rank: int
    transport: Transport | None


@dataclass(frozen=True, slots=True)
class FollowTask:
    """A worker's task before its first seat: ask a member which calls of the program are over, and follow it where it
    can.

    Attributes:
        transport: to the member, who has rank 0; this worker has rank 1.
        in_sync: reports that this worker has all that the member has.
    """

    transport: Transport
    in_sync: Callable[[], None]


class Coordinator(Protocol):
    """A session's source of plans and connections. Called from the training thread."""

    def next_seat(self, parked: ParkReport) -> Seat | FollowTask:
        """Report, then wait for the next plan and connect to its members, or to the one to follow until it asks again.
        Raises Dismissed when this worker leaves."""

    def joiners(self) -> list[Transport]:
        """Connections to workers that have come since the last call to follow this member: it has rank 0 there."""

    def plan_pending(self) -> bool:
        """Whether a newer plan has been announced: the step that says so is the last of its generation."""

    def interrupted(self) -> bool:
        """Whether the running generation was given up: what was computed since the last commit is lost. Before the
        first seat: whether this worker must report again that it waits for one, wherever in the program it is."""


def check_given_up(coordinator: Coordinator, *, rank: int, phase: str) -> None:
    """Check, where no exchange would show it, that the running generation goes on. Raises ExchangeBroken."""
    if coordinator.interrupted():
        raise ExchangeBroken(rank=rank, phase=phase, bucket=None, why="the generation was given up")


class RecordSink(Protocol):
    """Where a worker's settled records go. Rank 0 reports; every member keeps what is not yet acknowledged."""

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        """Record all values of one settled step."""

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        """Record the settled rows of one step: (n,) int32 shard and (n,) int64 row of the dataset, checked against the
        checksums that travelled with the gradients."""

    def trace(self, stretch: TimelineStretch) -> None:
        """Record the timeline of steps that are just committed; to be kept until they are settled."""

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        """Report an event that no step can take back."""

    def artifact(self, artifact: SavedArtifact) -> None:
        """Record an artifact of a settled step, before the metrics of the next step. The same one may come again."""

    def saved(self, saved: SavedPart) -> None:
        """Report that this member's files of a checkpoint are written. From any thread."""

    def settled(self, step: int) -> None:
        """Mark all steps below `step` as settled: log lines printed before may leave."""

    def replayed(self) -> None:
        """Drop the log lines of the running step, which starts over."""

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        """Set the newest committed step and the training thread's phase (forward, backward, exchange, update,
        committed, evaluate, finish, parked; between: the program's own code beside all that), sent with the next
        heartbeat. `rows` owned scale the stall deadline."""

    def between(self, call: int) -> None:
        """Announce that, until `within`, the program's own lines before that session call run: every member runs them,
        a joiner again, and each line that they print is recorded once."""

    def within(self, *, told: bool = True) -> None:
        """Announce that, until `between`, a call runs, whose prints are this member's own. Not `told`: a body runs
        whose results are dropped."""

    def timed(self, split: TimeSplit) -> None:
        """Set the clock of the session that begins; its times are sent with each heartbeat."""

    def recorded_step(self) -> int:
        """The step below which all records are stored by the supervisor."""

    def handed_over(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until all records, events and files of checkpoints told so far are stored by the
        supervisor. Returns whether they are."""
