"""The sweeps' part of a round: scores are taken in, and what `scheduling.sweeps` decides is carried out.

A promotion, a pause and its job's move are one transaction. A trial's job is submitted under a key of the trial's own,
so that a process that died before it noted the job finds it again.
"""

from collections.abc import Sequence

from sqlalchemy import String, and_, cast, literal, select
from sqlalchemy.orm import Session

from ringleader.errors import RingleaderError
from ringleader.spec.sweep import SweepSpec
from ringleader.text import gist
from ringleader.wire.access import Role
from ringleader.wire.states import State
from ringleader.wire.sweeps import SweepState, TrialState
from ringleader.wire.views import Why
from ringleader_api.clock import Clock
from ringleader_api.log import Log
from ringleader_api.rights import Caller
from ringleader_api.scheduling import sweeps as decided
from ringleader_api.scheduling.sweep_points import Point, Told, suggested
from ringleader_api.services.jobs.changes import begin_cancel, begin_pause
from ringleader_api.services.jobs.submission import Submissions
from ringleader_api.services.sweeps.trials import KnownTrial, known_trials, new_scores, snapshot_of_sweep
from ringleader_api.services.users.access import caller
from ringleader_api.store import RoleLeaseLost, Transactions, log_failure, move
from ringleader_api.store.sweeps import Sweep, SweepTrial
from ringleader_api.store.tables import IdempotencyKey, Job

log = Log("ringleader.sweeps")
WHO = "sweep"
AT_WORK = (State.QUEUED, State.STARTING, State.RUNNING, State.RECOVERING)


class Sweeping:
    """Advances the sweeps that are not closed. Used by the reconciler only."""

    def __init__(self, store: Transactions, submissions: Submissions, now: Clock) -> None:
        self._store = store
        self._submissions = submissions
        self._now = now

    def advance(self) -> None:
        """Do the next things for each sweep; one that fails keeps none of the others from theirs."""
        with self._store.read() as session:
            rows = session.scalars(select(Sweep).where(Sweep.closed.is_(False)).order_by(Sweep.id)).all()
        for row in rows:
            try:
                self._advance(row)
            except RoleLeaseLost:
                raise
            except Exception as error:  # it is tried again in the next round
                log_failure(log, "sweep.failed", error, sweep=row.id)

    def _advance(self, row: Sweep) -> None:
        spec = SweepSpec.model_validate(row.spec)
        if row.state is not SweepState.RUNNING:
            self._adopt(row)
        known = self._scored(row, spec)
        by_number = {one.row.number: one for one in known}
        for act in decided.decide_sweep(snapshot_of_sweep(row, spec, known)):
            match act:
                case decided.SubmitTrial(number=number):
                    self._submit(row, spec, by_number[number].row, known)
                case decided.PromoteTrial(number=number):
                    self._promote(row, by_number[number])
                case decided.ResumeTrial(number=number):
                    self._resume(row, number)
                case decided.PauseTrial(number=number):
                    self._pause(row, spec, by_number[number])
                case decided.CancelTrial(number=number):
                    self._cancel(row, number)
                case decided.EndSweep(winner=winner):
                    self._end(row, winner, known)
                case decided.CloseSweep():
                    with self._store.write() as session:
                        _locked(session, row).closed = True

    def _adopt(self, row: Sweep) -> None:
        """Note the jobs whose submission was the last thing that a process did."""
        # Looked for by their keys: a running sweep finds them by submitting anew, and one that was paused or cancelled
        # since submits nothing.
        made = and_(
            IdempotencyKey.owner == row.owner,
            IdempotencyKey.key == literal(f"{row.id}/").concat(cast(SweepTrial.number, String(40))),
        )
        query = (
            select(SweepTrial.number, IdempotencyKey.job_id)
            .join(IdempotencyKey, made)
            .where(SweepTrial.sweep_id == row.id, SweepTrial.job_id.is_(None), SweepTrial.reason.is_(None))
        )
        with self._store.read() as session:
            found = session.execute(query).all()
        if not found:
            return
        with self._store.write() as session:
            for number, job_id in found:
                _trial(session, row, number).job_id = job_id

    def _scored(self, row: Sweep, spec: SweepSpec) -> Sequence[KnownTrial]:
        """The trials, with the scores that have come since the last round, stored."""
        with self._store.read() as session:
            known = known_trials(session, row)
            fresh = {one.row.number: scores for one in known if (scores := new_scores(session, spec, one))}
        if not fresh:
            return known
        at = self._now().timestamp()
        with self._store.write() as session:
            for number, scores in fresh.items():
                trial = _trial(session, row, number)
                trial.scores = [*trial.scores, *scores]
                trial.scored_at = [*trial.scored_at, *[at] * len(scores)]
        with self._store.read() as session:
            return known_trials(session, row)

    def _submit(self, row: Sweep, spec: SweepSpec, trial: SweepTrial, known: Sequence[KnownTrial]) -> None:
        point = trial.point if trial.point is not None else self._draw(row, spec, trial, known)
        try:
            # Not against the cluster as it is now: a node that is gone for a while must not end trials. No host is
            # looked up: the sweep's request has done that, each alert does, and a round must not wait for a DNS server.
            accepted = self._submissions.accept(
                self._owner(row),
                spec.job_file(trial.number, point, row.id),
                f"{row.id}/{trial.number}",
                None,
                hosts_known=True,
            )
        except RingleaderError as refused:
            why = Why(code=refused.code, message=refused.message, hint=refused.hint)
            log.warning("sweep.trial_refused", sweep=row.id, trial=trial.number, why=refused.message)
            with self._store.write() as session:
                _trial(session, row, trial.number).reason = why.model_dump()
            return
        with self._store.write() as session:
            _trial(session, row, trial.number).job_id = accepted.job_id

    def _draw(self, row: Sweep, spec: SweepSpec, drawn: SweepTrial, known: Sequence[KnownTrial]) -> Point:
        """The point of a trial that depends on the scores of the others, stored."""
        told = [
            Told(one.row.point, one.row.scores[-1] if one.row.scores else None, ended=one.state.ended)
            for one in known
            if one.row.point is not None
        ]
        point = suggested(spec, drawn.number, told)
        # Before its job is submitted: after a crash the key stands for the same job.
        with self._store.write() as session:
            _trial(session, row, drawn.number).point = point
        drawn.point = point  # known to the next draw of this round
        return point

    def _owner(self, row: Sweep) -> Caller:
        """The owner, with the rights that they have now. Raises OwnerGone."""
        scope = {project: Role(role) for project, role in row.scope.items()}
        with self._store.read() as session:
            who = caller(session, row.owner, scope)
        if who is None:
            raise OwnerGone(
                f"{row.owner}, who made the sweep, may not submit jobs any more: the user is disabled.",
                hint="Make the sweep anew as another user.",
            )
        return who

    def _promote(self, row: Sweep, one: KnownTrial) -> None:
        with self._store.write() as session:
            trial = _trial(session, row, one.row.number)
            if one.row.held and not self._queue_again(session, trial):
                return
            trial.rung = one.row.rung + 1

    def _resume(self, row: Sweep, number: int) -> None:
        with self._store.write() as session:
            self._queue_again(session, _trial(session, row, number))

    def _queue_again(self, session: Session, trial: SweepTrial) -> bool:
        """Resume the trial's job. False: somebody else has changed its state since it was looked at."""
        job = session.get(Job, trial.job_id, with_for_update=True)
        if job is None or job.state is not State.PAUSED:
            return False
        move(session, job, State.QUEUED, at=self._now(), who=WHO)
        trial.held = False
        return True

    def _pause(self, row: Sweep, spec: SweepSpec, one: KnownTrial) -> None:
        number, rung = one.row.number, one.row.rung
        if row.state is SweepState.PAUSED:
            why = Why(code="sweep_paused", message=f"the sweep {row.name} is paused")
        else:
            why = Why(
                code="at_rung",
                message=f"trial {number} of sweep {row.name} waits at rung {rung} (step {spec.rungs[rung]})",
                hint="It goes on if its score turns out to be among the best there.",
            )
        with self._store.write() as session:
            trial = _trial(session, row, number)
            job = session.get(Job, trial.job_id, with_for_update=True)
            if job is not None and job.state in AT_WORK:
                begin_pause(session, job, at=self._now(), who=WHO, why=why)
                trial.held = True

    def _cancel(self, row: Sweep, number: int) -> None:
        how = "was cancelled" if row.state is SweepState.CANCELLED else "has ended without it"
        why = Why(code="sweep_ended", message=f"the sweep {row.name} {how}")
        with self._store.write() as session:
            trial = _trial(session, row, number)
            job = session.get(Job, trial.job_id, with_for_update=True)
            if job is not None and not job.state.ended:
                begin_cancel(session, job, at=self._now(), who=WHO, why=why)
            trial.held = False

    def _end(self, row: Sweep, winner: int | None, known: Sequence[KnownTrial]) -> None:
        with self._store.write() as session:
            sweep = _locked(session, row)
            # Somebody may have paused or cancelled it since it was looked at.
            if sweep.state is not SweepState.RUNNING:
                return
            sweep.state = SweepState.SUCCEEDED if winner is not None else SweepState.FAILED
            sweep.best = winner
            sweep.finished_at = self._now()
            if winner is None:
                metric = row.spec["metric"]["name"]
                failed = _first_failure(known) + _not_submitted(known)
                sweep.reason = Why(
                    code="no_winner",
                    message=f"no trial has come to its end with a value of the metric {metric!r}{failed}",
                    hint="Look at the trials' jobs for why they failed, and for which metrics they have.",
                ).model_dump()
        log.info("sweep.ended", sweep=row.id, winner=winner)


def _first_failure(known: Sequence[KnownTrial]) -> str:
    """What became of the first trial that failed: mostly that of all."""
    failed = next((one for one in known if one.state is TrialState.FAILED and one.why), None)
    return (
        f"; trial {failed.row.number} failed: {gist(Why(**failed.why).message)}"
        if failed and failed.why
        else ""
    )


def _not_submitted(known: Sequence[KnownTrial]) -> str:
    left = sum(one.state is TrialState.WAITING for one in known)
    return f"; no trial came to a first step, so the other {left} were not submitted" if left else ""


class OwnerGone(RingleaderError):
    """The user who made a sweep was disabled."""

    code = "owner_gone"


def _locked(session: Session, row: Sweep) -> Sweep:
    return session.get_one(Sweep, row.id, with_for_update=True)


def _trial(session: Session, row: Sweep, number: int) -> SweepTrial:
    return session.get_one(SweepTrial, (row.id, number), with_for_update=True)
