"""The API's shapes of sweeps and their trials."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from ringleader.wire.states import State
from ringleader.wire.views import View, Why


class SweepState(StrEnum):
    """The state of a sweep, as every client sees it."""

    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (SweepState.SUCCEEDED, SweepState.FAILED, SweepState.CANCELLED)


class TrialState(StrEnum):
    """The state of a trial: not submitted yet; its job waits or runs; is about to pause or to end; is paused; has
    ended."""

    WAITING = "waiting"
    WORKING = "working"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (TrialState.SUCCEEDED, TrialState.FAILED, TrialState.CANCELLED)

    @classmethod
    def of_job(cls, state: State) -> "TrialState":
        """The state of a trial whose job is in this state."""
        if state in (State.QUEUED, State.STARTING, State.RUNNING, State.RECOVERING):
            return cls.WORKING
        return cls(state.value)


class TrialView(View):
    """One trial of a sweep.

    Attributes:
        point: its values, by path in the job file; null while they are not drawn.
        job: the id of its job; null until it is submitted.
        job_state: the state of that job; null once the job was deleted.
        rung: the rung that it runs to, counted from 0; the number of rungs stands for the end of the job.
        scores: the metric at the rungs that it has reached, in order, and at its end.
        score: the metric's newest value.
        step: the newest step of its job.
    """

    number: int
    state: TrialState
    point: dict[str, Any] | None
    job: str | None
    job_state: State | None
    rung: int
    scores: list[float]
    score: float | None
    step: int
    reason: Why | None


class BestPoint(View):
    """A score that was better than all before it."""

    at: datetime
    trial: int
    score: float


class SweepView(View):
    """A sweep. `rungs` are steps; `best` is the number of the leading trial, and of an ended sweep its winner;
    `improvements` are the scores at rungs and ends that were the best of their time."""

    id: str
    name: str
    project: str
    owner: str
    spec: dict[str, Any]
    state: SweepState
    reason: Why | None
    created_at: datetime
    finished_at: datetime | None
    rungs: list[int]
    trials: int
    submitted: int
    ended: int
    best: int | None
    best_score: float | None
    improvements: list[BestPoint]


class SweepPage(View):
    """A page of sweeps, newest first."""

    items: list[SweepView]
    next_cursor: str | None


class TrialPage(View):
    """All trials of a sweep, by number."""

    items: list[TrialView]


class SweepPreview(View):
    """A sweep that was checked and not stored. `points` are those of its first trials, `job` the job file of the first
    one, and `pending_reason` why that would wait."""

    trials: int
    rungs: list[int]
    points: list[dict[str, Any]]
    job: dict[str, Any]
    starts_now: bool
    pending_reason: Why | None
