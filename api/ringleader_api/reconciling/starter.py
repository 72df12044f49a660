"""Attempts that do not start: the obstacle is reported, and each is tried again after growing pauses."""

from collections.abc import Collection
from dataclasses import dataclass

from ringleader.errors import RingleaderError
from ringleader.wire.states import Reason, State
from ringleader.wire.views import Why
from ringleader_api.backend import AttemptGone
from ringleader_api.clock import Patience
from ringleader_api.log import Log
from ringleader_api.reconciling.launcher import AttemptLauncher
from ringleader_api.reconciling.round_clock import Who
from ringleader_api.store import RoleLeaseLost, Transactions
from ringleader_api.store.tables import Job

log = Log("ringleader.starting")
MOST_ROUNDS = 200
"""The most rounds between two tries: about a minute."""
TOLD = 500


@dataclass(slots=True)
class _Obstacle:
    """An obstacle to the start of an attempt, as it was told last, and the rounds until the next try."""

    patience: Patience
    told: Why | None = None

    def tell(self, why: Why) -> None:
        self.told = why


class AttemptStarter:
    """Asks for the supervisors of stored attempts. Used by the reconciler only."""

    def __init__(self, store: Transactions, launching: AttemptLauncher) -> None:
        self._store = store
        self._launching = launching
        self._obstacles: dict[Who, _Obstacle] = {}

    def begin_round(self, present: Collection[Who]) -> None:
        """Forget attempts that are over."""
        self._obstacles = {who: found for who, found in self._obstacles.items() if who in present}

    def start(self, job_id: str, attempt: int) -> Why | None:
        """Ask for the supervisor once, unless the attempt is sitting out; an error becomes the job's `pending_reason`.
        Returns the reason why the attempt is over where its supervisor has lived and is gone; else None."""
        who = (job_id, attempt)
        # One less: the round that tries again counts, so the first failure is tried again in the very next one.
        obstacle = self._obstacles.get(who) or _Obstacle(Patience(MOST_ROUNDS, less=1))
        if obstacle.patience.sits_out():
            return None
        try:
            self._launching.start(job_id, attempt)
        except AttemptGone as gone:
            return Why(code=Reason.PLATFORM_ERROR, message=gone.message)
        except RoleLeaseLost:
            raise
        except Exception as error:  # whatever it is, it is this job's trouble, and no other's
            self._failed(who, obstacle, error)
            return None
        self._obstacles.pop(who, None)
        if obstacle.told is not None:
            self._tell(who, None)
        return None

    def _failed(self, who: Who, obstacle: _Obstacle, error: Exception) -> None:
        obstacle.patience.put_off()
        self._obstacles[who] = obstacle
        why = _why(error)
        # One traceback for each cause: the same failure comes back in round after round.
        if why == obstacle.told:
            log.warning("attempt.not_started", job=who[0], attempt=who[1], why=why.message)
            return
        log.exception("attempt.not_started", job=who[0], attempt=who[1])
        self._tell(who, why)
        obstacle.tell(why)

    def _tell(self, who: Who, why: Why | None) -> None:
        job_id, attempt = who
        with self._store.write() as session:
            job = session.get(Job, job_id, with_for_update=True)
            if job is not None and (job.attempt, job.state) == (attempt, State.STARTING):
                job.pending_reason = why.model_dump() if why else None


def with_cause(job: Job, why: Why) -> Why:
    """The reason why an attempt is over; for one that never began, together with the obstacle."""
    if job.state is not State.STARTING or not job.pending_reason:
        return why
    cause = Why(**job.pending_reason)
    return why.model_copy(update={"message": f"{why.message}: {cause.message}", "hint": cause.hint})


def _why(error: Exception) -> Why:
    if isinstance(error, RingleaderError):
        return Why(code=error.code, message=error.message, hint=error.hint)
    return Why(
        code="start_failed",
        message=f"its supervisor could not be started ({type(error).__name__}: {error})"[:TOLD],
        hint="It is retried with growing pauses. The control plane's log has the full traceback.",
    )
