"""The states of a job, the one table of legal moves between them, and the reasons a job can fail for."""

from enum import StrEnum


class State(StrEnum):
    """The state of a job, as every client sees it."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return not EDGES[self]

    @property
    def holds(self) -> bool:
        """Whether the job has, or may have, something on the cluster."""
        return not (self.ended or self in (State.QUEUED, State.PAUSED))


EDGES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.STARTING, State.PAUSED, State.CANCELLED, State.FAILED}),
    # Back to the queue: evicted, without room on the cluster, or lost with failures left in the budget.
    State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.QUEUED}),
    State.RUNNING: frozenset({State.RECOVERING, State.STOPPING, State.QUEUED}),
    State.RECOVERING: frozenset({State.RUNNING, State.STOPPING, State.QUEUED}),
    State.STOPPING: frozenset({State.PAUSED, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.PAUSED: frozenset({State.QUEUED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}
"""The legal moves. `stopping` stores its target first: the end is decided before anything is torn down."""


class Reason(StrEnum):
    """The reason why a job failed (`reason.code`)."""

    ENTRYPOINT_IMPORT = "entrypoint_import"
    ENTRYPOINT_RAISED = "entrypoint_raised"
    NO_STEP = "no_step"
    NONFINITE_LOSS = "nonfinite_loss"
    OUT_OF_MEMORY = "out_of_memory"
    REQUIREMENTS_FAILED = "requirements_failed"
    NO_DEVICE = "no_device"
    MIN_WORKERS_LOST = "min_workers_lost"
    MAX_RUNTIME = "max_runtime"
    SECRET_MISSING = "secret_missing"  # noqa: S105 - a name, no password
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    PLATFORM_ERROR = "platform_error"


RETRIED: frozenset[Reason] = frozenset({Reason.MIN_WORKERS_LOST, Reason.PLATFORM_ERROR})
"""Failures of the cluster rather than of the job: the next attempt may fare better, within `max_failures`."""
