"""The start of an attempt, exactly once: its number is stored first, and its supervisor is then asked for by that
name."""

from datetime import datetime
from pathlib import Path

from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec
from ringleader.wire.states import Reason, State
from ringleader.wire.views import Why
from ringleader_api.backend import Backend, Launch
from ringleader_api.clock import Clock
from ringleader_api.edge.credentials import sha256
from ringleader_api.log import Log
from ringleader_api.services.jobs.attempts import attempt_failed
from ringleader_api.services.jobs.checkpoints import NoneLeft, beginning_of, checkpoints_of
from ringleader_api.services.jobs.claims import allowed
from ringleader_api.services.packages import Packages
from ringleader_api.services.secrets import SecretMissing, Secrets
from ringleader_api.services.users.accounts import OWN, Accounts, NoAccount
from ringleader_api.store import Transactions, move
from ringleader_api.store.tables import IngestToken, Job
from ringleader_api.telemetry import Telemetry
from ringleader_api.tracing import UNTRACED, Traces

log = Log("ringleader.launching")


class CheckpointsElsewhere(RingleaderError):
    """A job's checkpoints lie where its next attempt does not look: since they were saved, jobs run under other
    accounts."""

    code = Reason.CHECKPOINT_UNREADABLE


class AttemptLauncher:
    """Admits jobs and starts their attempts. Used by the reconciler only.

    Args:
        ingest_base: where supervisors reach this API.
    """

    def __init__(
        self,
        store: Transactions,
        backend: Backend,
        packages: Packages,
        secrets: Secrets,
        *,
        telemetry: Telemetry,
        traces: Traces = UNTRACED,
        now: Clock,
        ingest_base: str,
        home: Path,
        accounts: Accounts = OWN,
    ) -> None:
        self._store = store
        self._backend = backend
        self._packages = packages
        self._secrets = secrets
        self._telemetry = telemetry
        self._traces = traces
        self._now = now
        self._ingest_base = ingest_base
        self._home = home
        self._accounts = accounts

    def admit(self, job_id: str, workers: int | None = None, *, overtakes: bool = False) -> int | None:
        """Give the queued job its next attempt with up to `workers` (None: as many as it wants); returns the attempt's
        number, or None when the job is not queued any more. A job that `overtakes` makes room again for those that wait
        before it."""
        with self._store.write() as session:
            job = session.get(Job, job_id, with_for_update=True)
            if job is None or job.state is not State.QUEUED:
                return None
            # Committed before anything is asked of the cluster: after a crash the same number is asked for again.
            job.attempt += 1
            job.granted = workers if workers is not None and workers < job.spec["workers"]["max"] else None
            job.granted_at = self._now()
            job.overtook = overtakes
            move(session, job, State.STARTING, at=self._now(), who="scheduler")
            return job.attempt

    def start(self, job_id: str, attempt: int) -> None:
        """Ask for the supervisor of a stored attempt; asking again after a crash names the same one."""
        # The same whoever asks: another control plane may be asking for this supervisor at the same time.
        token = self._secrets.derived(f"ingest {job_id} {attempt}")
        with self._store.write() as session:
            job = self._current(session, job_id, attempt)
            if job is None or job.state is not State.STARTING:
                return
            # The hash is committed before the supervisor exists, so its first post cannot come too early.
            session.merge(IngestToken(job_id=job_id, attempt=attempt, sha256=sha256(token)))
            try:
                run_as = self._accounts.run_as(job.owner, JobSpec.stored(job.spec))
                home = self._home if run_as is None else run_as.folder
                spec = _begun(session, job, home)
                _checkpoints_in_reach(session, job, home)
                # Only to see that all are there: the supervisor asks for the values itself.
                self._secrets.values(session, job.project, spec.secrets)
            except (SecretMissing, NoneLeft, NoAccount, CheckpointsElsewhere) as error:
                why = Why(code=error.code, message=error.message, hint=error.hint)
                attempt_failed(session, job, why, at=self._now(), who="scheduler")
                return
            package = job.package
            workers = spec.workers.model_copy(update={"max": allowed(job)})
        # Outside the transaction: reading a package and calling the cluster take too long to hold the writers' turn.
        launch = Launch(
            job_id=job_id,
            attempt=attempt,
            spec=spec.model_copy(update={"workers": workers}),
            package=self._packages.read(package) if package else None,
            ingest_url=f"{self._ingest_base}/api/v1/jobs/{job_id}/ingest",
            ingest_token=token,
            home=self._home,
            run_as=run_as,
        )
        began = self._now()
        self._backend.start(launch)
        self._traces.told(job_id, "launch", began, self._now())
        # A crash before this note is harmless: the next round finds the supervisor by name and adopts it.
        self.confirm(job_id, attempt, sized=(workers.min, workers.max))

    def confirm(self, job_id: str, attempt: int, *, sized: tuple[int, int] | None) -> None:
        """Record that the supervisor is there, and the bounds it was given."""
        queued_at: datetime | None = None
        with self._store.write() as session:
            job = self._current(session, job_id, attempt)
            if job is None:
                return
            # Once: an attempt that is adopted or resized must not be counted a second time.
            if not job.launched:
                queued_at = job.queued_at
                job.launched = True
            if sized is not None:
                job.sized_min, job.sized_max = sized
        if queued_at is not None:
            waited_s = (self._now() - queued_at).total_seconds()
            self._telemetry.scheduling.observe(waited_s)
            log.info("attempt.started", job=job_id, attempt=attempt, waited_s=round(waited_s, 3))

    def _current(self, session: Session, job_id: str, attempt: int) -> Job | None:
        """The job, if this attempt may still run; None otherwise."""
        job = session.get(Job, job_id, with_for_update=True)
        # A cancel may have come in between.
        alive = job is not None and job.attempt == attempt and job.state.holds
        return job if alive else None


def _begun(session: Session, job: Job, home: Path) -> JobSpec:
    """The job file of a job that starts. `home`: the folder below which its program finds what other jobs have left.
    Raises NoneLeft."""
    spec = JobSpec.stored(job.spec)
    beginning = beginning_of(session, spec.init_from, home, optimizers=spec.init_optimizers)
    # Written into the job file, so that later attempts begin with the same weights as the first.
    if beginning != spec.init_from:
        spec = spec.model_copy(update={"init_from": beginning})
        # Stored: by the next attempt the source may have a newer checkpoint, or none.
        job.spec = spec.model_dump(mode="json")
        job.version += 1
    return spec


def _checkpoints_in_reach(session: Session, job: Job, home: Path) -> None:
    """Refuse to start an attempt that would find none of the job's checkpoints and begin from nothing. Raises
    CheckpointsElsewhere."""
    if job.attempt == 1 or job.spec.get("checkpoint", {}).get("uri"):
        return
    newest = next(iter(checkpoints_of(session, job.id)), None)
    if newest is None:
        return
    folder = home / "checkpoints" / job.id
    # Only where it is plainly there and not here: a checkpoint that is gone altogether is the attempt's to report.
    if Path(newest.uri).is_dir() and not (folder / Path(newest.uri).name).is_dir():
        raise CheckpointsElsewhere(
            f"the job's newest checkpoint is {newest.uri}, but its attempts look in {folder} since RINGLEADER_RUN_AS "
            "or RINGLEADER_RUN_AS_FOLDER was changed.",
            hint="Restore the old setting to resume this job, or start another job from the checkpoint with init_from.",
        )
