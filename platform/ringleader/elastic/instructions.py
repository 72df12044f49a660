"""The instructions of the membership machine. The supervisor turns each into calls on real workers."""

from dataclasses import dataclass
from typing import Any, Literal

from ringleader.elastic.plan import Plan

Role = Literal["worker", "server"]
Outcome = Literal["succeeded", "failed", "cancelled", "paused", "preempted"]
SAVED: tuple[Outcome, ...] = ("paused", "preempted")
"""The outcomes after which the members have saved the last boundary, and the job may go on from there."""


@dataclass(frozen=True, slots=True)
class Start:
    """Find a place and a process for a new worker."""

    worker: str
    role: Role


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End the waits of `generation` in this member so that it parks."""

    worker: str
    generation: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell this member that `generation` is coming: all park at the same boundary."""

    worker: str
    generation: int


@dataclass(frozen=True, slots=True)
class Form:
    """Hand the plan to all its members. The supervisor fills in `recorded_step` and `meeting`."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Follow:
    """Let `worker`, which waits to join, follow `donor`: it gets a copy of the donor's state and the gradients of every
    step since. `number` counts these; no two pairs meet under one."""

    worker: str
    donor: str
    number: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Let a parked worker leave: unwind its training function and end its process."""

    worker: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this worker's process now; its death comes back as `Lost`."""

    worker: str
    cause: str


@dataclass(frozen=True, slots=True)
class Report:
    """Tell users about something: an event of the job."""

    type: str
    generation: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """End the attempt and whatever still runs. `reason` is one of `wire.states.Reason` if it failed, `preempted` if it
    is to go on elsewhere, else empty."""

    outcome: Outcome
    reason: str = ""
    message: str = ""
    hint: str = ""


Instruction = Start | Interrupt | Announce | Form | Follow | Dismiss | Kill | Report | End
