"""Submission: a job is checked, must fit on the cluster, and is stored once however often it is sent."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert, inspect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from ringleader.errors import RingleaderError, SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.program.entrypoint import check_chosen
from ringleader.spec.program.framework import chosen_in, why_other_bits
from ringleader.wire.states import State
from ringleader.wire.views import View, Why
from ringleader_api.alerting.cursors import follow_submitted
from ringleader_api.clock import Clock, new_job_id
from ringleader_api.problems import Conflict, Forbidden, Unprocessable
from ringleader_api.rights import Action, Caller
from ringleader_api.scheduling import Hold, Seen, decide
from ringleader_api.services import packages
from ringleader_api.services.alert_checks import ChannelChecks
from ringleader_api.services.jobs.claims import Register, claim_of_spec, snapshot_of
from ringleader_api.services.jobs.infeasible import placeable
from ringleader_api.services.jobs.references import References, not_uploaded
from ringleader_api.services.jobs.views import surplus_told
from ringleader_api.services.records.group_commit import GroupCommit
from ringleader_api.services.secrets import Secrets
from ringleader_api.services.users.access import have_project, load, permit, permit_job
from ringleader_api.services.users.accounts import Accounts, NoAccount
from ringleader_api.store import Store
from ringleader_api.store.audit import CURRENT_ACTION, AuditedAction
from ringleader_api.store.listed import attributes_of
from ringleader_api.store.people import Project
from ringleader_api.store.tables import Base, Event, IdempotencyKey, Job, JobAttribute

MAX_KEY = 200
MOST_AT_ONCE = 64


class Preview(View):
    """The decision on a job that was not stored.

    Attributes:
        reproducible: whether the weights will not depend on who computes what.
        reproducible_why: the setting that makes them depend on it; empty where none does.
        surplus: where workers above `workers.min` come from; empty if there are none and none are requested.
    """

    starts_now: bool
    pending_reason: Why | None
    logical_shards: int
    reproducible: bool
    reproducible_why: str
    surplus: str
    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A stored job. `row` is that of a new one; None: the key was used for the same body before."""

    job_id: str
    row: Job | None = None


class Submissions:
    """Accepts and previews jobs. `seen` is the cluster as last seen, None while it is out of reach. `tracked`: jobs are
    copied to MLflow."""

    def __init__(
        self,
        store: Store,
        now: Clock,
        secrets: Secrets,
        accounts: Accounts,
        channels: ChannelChecks,
        *,
        tracked: bool = False,
    ) -> None:
        self._store = store
        self._now = now
        self._references = References(store, secrets)
        self._accounts = accounts
        self._channels = channels
        self._tracked = tracked
        self._together: GroupCommit[_Asked, Accepted] = GroupCommit(self._store_all, most=MOST_AT_ONCE)

    def accept(
        self, who: Caller, body: Any, key: str | None, seen: Seen | None, *, hosts_known: bool = False
    ) -> Accepted:
        """Store the job with its first event.

        Args:
            hosts_known: the hosts of its alerts have been looked up before, and are not again.

        Raises:
            SpecInvalid: the body is no job file.
            Unprocessable: the package is missing, or the cluster can never hold the job.
            Conflict: the key was used for another body.
            NotFound, Forbidden: `who` may not submit to the project, has no account where jobs have some, or may read
                what the key has made no more.
        """
        digest = digest_of(body, key)
        # Before the checks: a repetition is answered with its job also where today's cluster would refuse it.
        if key is not None and (known := self._replayed(who.name, key, digest)):
            # Asked here, too: the sender's role may have been taken since, and the answer shows the job.
            permit_job(self._store, who, Action.READ, known)
            return Accepted(known)
        spec = self._checked(who, body, seen, hosts_known)
        # The action is handed over: the transaction may run in another request's thread.
        asked = _Asked(who, spec, key, digest, CURRENT_ACTION.get())
        try:
            return self._together(asked)
        except IntegrityError:
            # The key or the project was stored by another at this moment, or this very job by a try before.
            return self._together(asked)

    def _store_all(self, asked: Sequence["_Asked"]) -> "list[Accepted | Exception]":
        """Store all submissions that came in while the last transaction was on its way to the disk, in one."""
        actions: list[AuditedAction] = []
        rows = _Rows()
        answers: list[Accepted | Exception] = []
        # `actions` fills up in the block: the rows of the audit log are written at its end.
        with self._store.write(actions) as session:
            for one in asked:
                if (stored := one.stored(session)) is not None:
                    answers.append(Accepted(stored.id, stored))
                    continue
                try:
                    accepted = self._take(session, one, rows)
                except RingleaderError as error:
                    answers.append(error)
                    continue
                answers.append(accepted)
                if one.action is not None:
                    one.action.project, one.action.target = one.spec.project, accepted.job_id
                    actions.append(one.action)
            rows.store(session)
        return answers

    def _take(self, session: Session, one: "_Asked", rows: "_Rows") -> Accepted:
        owner = one.who.name
        if one.key is not None and (known := rows.replay(session, owner, one.key, one.digest)):
            return Accepted(known)
        rows.hold_package(session, one.spec)
        at = self._now()
        if one.spec.project not in rows.projects:
            have_project(session, one.who, one.spec.project, Project(name=one.spec.project, created_at=at))
            session.flush()
            rows.projects.add(one.spec.project)
        one.job_id = one.job_id or new_job_id()
        row = _row_of(one, at)
        rows.add(row, one.key, one.digest)
        # For the answer alone: the row itself is inserted with all others of the batch.
        return Accepted(one.job_id, Job(**row))

    def preview(self, who: Caller, body: Any, seen: Seen | None) -> Preview:
        """Run the same checks, and decide as the scheduler would now; nothing is stored."""
        spec = self._checked(who, body, seen)
        source = spec.model_dump(mode="json")
        why = _unknown_cluster() if seen is None else self._why_waiting(spec, seen)
        return Preview(
            starts_now=why is None,
            pending_reason=why,
            logical_shards=spec.shards,
            reproducible=not why_other_bits(spec.framework, spec.sync),
            reproducible_why=why_other_bits(spec.framework, spec.sync),
            surplus=surplus_told(source, grows=seen is None or seen.reach is not None),
            spec=source,
        )

    def _replayed(self, owner: str, key: str, digest: str) -> str | None:
        with self._store.read() as session:
            return _replay(session, owner, key, digest)

    def _checked(self, who: Caller, body: Any, seen: Seen | None, hosts_known: bool = False) -> JobSpec:
        spec = resolved(JobSpec.parse(body))
        check_chosen(spec)
        # Before anything is looked up: a refusal must not tell which packages and secrets there are.
        permit(who, Action.SUBMIT, spec.project)
        try:
            self._accounts.run_as(who.name, spec)
        except NoAccount as error:
            raise Forbidden(error.message, hint=error.hint, code="no_account") from None
        if spec.priority > 0:  # it takes room from others
            permit(who, Action.STEER, spec.project)
        if spec.register is not None and not self._tracked:
            raise _no_registry(spec.register)
        self._references.check(who, spec)
        rules = {f"/alerts/{place}": rule for place, rule in enumerate(spec.alerts)}
        self._channels.check(spec.project, rules, "the job file", hosts_known=hosts_known)
        if seen is not None:
            placeable(spec, seen)
        return spec

    def _why_waiting(self, spec: JobSpec, seen: Seen) -> Why | None:
        with self._store.read() as session:
            mine = [claim_of_spec("this job", spec)]
            snapshot = snapshot_of(session, Register().jobs(session), seen, self._now(), besides=mine)
        mine_only = (d for d in decide(snapshot) if d.job_id == "this job")
        return next((d.why for d in mine_only if isinstance(d, Hold)), None)


def _no_registry(name: str) -> SpecInvalid:
    allowed = "leave it out, or submit to a control plane with MLflow"
    why = f"register names a model in MLflow's registry, and this control plane has no MLflow; allowed: {allowed}"
    return SpecInvalid([{"pointer": "/register", "value": name, "allowed": allowed, "message": why}])


def resolved(spec: JobSpec) -> JobSpec:
    """Fix the number of shards."""
    # Stored with the job: a later resize of `workers.max` must not change it.
    return spec.model_copy(update={"batch": spec.batch.model_copy(update={"logical_shards": spec.shards})})


@dataclass(slots=True)
class _Asked:
    """A checked submission. `action` names it in the audit log; `job_id` is drawn at the first try."""

    who: Caller
    spec: JobSpec
    key: str | None
    digest: str
    action: AuditedAction | None
    job_id: str = ""

    def stored(self, session: Session) -> Job | None:
        """The job, if an earlier try was committed although its answer was lost."""
        there = session.get(Job, self.job_id) if self.job_id else None
        if there is not None and self.action is not None:
            self.action.recorded = True
        return there


_TABLES = (Job, Event, IdempotencyKey, JobAttribute)
_INSERTS = [insert(Base.metadata.tables[table.__tablename__]) for table in _TABLES]
"""Inserts into tables: objects would cost a session more than the rest of the transaction."""


class _Rows:
    """The rows of several submissions, inserted together. `projects`: those known to exist."""

    def __init__(self) -> None:
        self.projects: set[str] = set()
        self._jobs: list[dict[str, Any]] = []
        self._keys: dict[tuple[str, str], dict[str, Any]] = {}
        self._held: set[str] = set()

    def replay(self, session: Session, owner: str, key: str, digest: str) -> str | None:
        """The job made with this key, stored or in this batch."""
        fresh = self._keys.get((owner, key))
        if fresh is None:
            return _replay(session, owner, key, digest)
        same_body(key, fresh["body_sha256"], digest)
        return str(fresh["job_id"])

    def hold_package(self, session: Session, spec: JobSpec) -> None:
        """Hold the package until the job that refers to it is stored, so that nobody removes it. Raises Unprocessable
        where it is gone."""
        name = spec.working_dir
        if name is None or name in self._held:
            return
        if not packages.there(session, name, hold=True):
            raise not_uploaded(name)
        self._held.add(name)

    def add(self, job: dict[str, Any], key: str | None, digest: str) -> None:
        self._jobs.append(job)
        if key is not None:
            told = {"owner": job["owner"], "key": key, "body_sha256": digest, "job_id": job["id"]}
            self._keys[job["owner"], key] = {**told, "created_at": job["created_at"]}

    def store(self, session: Session) -> None:
        """Insert each job with its first event, and what lists find it by."""
        if not self._jobs:
            return
        events = [
            {
                "job_id": job["id"],
                "seq": 1,
                "type": "job.queued",
                "at": job["created_at"],
                "attempt": 0,
                "generation": 0,
                "data": {"who": job["owner"], **chosen_in(job["spec"])},
            }
            for job in self._jobs
        ]
        keys = list(self._keys.values())
        named = [(job["id"], job["labels"], job["spec"].get("params", {})) for job in self._jobs]
        attributes = [row for one in named for row in attributes_of(*one)]
        for into, rows in zip(_INSERTS, (self._jobs, events, keys, attributes), strict=True):
            if rows:
                session.execute(into, rows)
        follow_submitted(session, self._jobs)


def _replay(session: Session, owner: str, key: str, digest: str) -> str | None:
    row = session.get(IdempotencyKey, (owner, key))
    if row is None:
        return None
    same_body(key, row.body_sha256, digest)
    return load(session, row.job_id).id


def digest_of(body: Any, key: str | None) -> str:
    """The digest by which a body that is sent again is known; `key` is its Idempotency-Key.

    Raises:
        Unprocessable: the key is too short or too long.
    """
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise Unprocessable(
            f"an Idempotency-Key must have 1 to {MAX_KEY} characters.", code="bad_idempotency_key"
        )
    # Sorted: a client may order the keys otherwise when it sends the same again.
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def same_body(key: str, before: str, now: str, kind: str = "job") -> None:
    """Raise Conflict where a key comes with another body than before."""
    if before != now:
        raise Conflict(
            f"the Idempotency-Key {key!r} was already used for a different {kind} file.",
            hint=f"Use a new key for each new {kind}.",
            code="idempotency_key_reused",
        )


_UNTOUCHED = {
    column.key: column.default.arg if isinstance(column.default, ScalarElementColumnDefault) else None
    for column in inspect(Job).columns
}
"""The defaults of a row: a new job is shown as it will be read."""


def _row_of(one: _Asked, at: datetime) -> dict[str, Any]:
    spec = one.spec
    stored = spec.model_dump(mode="json")
    return {
        **_UNTOUCHED,
        "id": one.job_id,
        "name": spec.name,
        "project": spec.project,
        "owner": one.who.name,
        "labels": dict(spec.labels),
        "spec": stored,
        "submitted": stored,
        "package": spec.working_dir.removeprefix("sha256:") if spec.working_dir else None,
        "state": State.QUEUED,
        "workers": [],
        "created_at": at,
        "queued_at": at,
        "event_seq": 1,
        "priority": spec.priority,
        "listed": True,
    }


def _unknown_cluster() -> Why:
    return Why(
        code="cluster_unreachable", message="the cluster does not answer; accepted jobs wait until it does"
    )
