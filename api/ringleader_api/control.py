"""Everything a route may call, built once per application, and the threads that run beside it."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from anyio import Semaphore
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from ringleader.wire.states import State
from ringleader_api.backend import Backend
from ringleader_api.clock import Clock, utc_now
from ringleader_api.edge.connections import Bounds, descriptors
from ringleader_api.edge.credentials import Credentials, first_token
from ringleader_api.edge.provider import Provider
from ringleader_api.edge.rate import Allowance, Streams
from ringleader_api.edge.refusals import COUNTED_EVERY_S, Refusals
from ringleader_api.edge.request_turns import RequestTurns
from ringleader_api.log import Log
from ringleader_api.reconciling import (
    AttemptLauncher,
    Autoscaling,
    Reconciler,
    Retention,
    RoleLeasedBackend,
    SpoolRecovery,
)
from ringleader_api.services.jobs.changes import Jobs
from ringleader_api.services.jobs.checkpoints import Exports
from ringleader_api.services.jobs.faults import Faults
from ringleader_api.services.jobs.submission import Submissions
from ringleader_api.services.package_quota import PackageQuota
from ringleader_api.services.packages import Packages
from ringleader_api.services.records.artifacts import Artifacts
from ringleader_api.services.records.feeds import Feeds
from ringleader_api.services.records.ingest import Intake
from ringleader_api.services.records.metrics import Curves
from ringleader_api.services.secrets import Secrets
from ringleader_api.services.users.accounts import Accounts
from ringleader_api.services.users.audit import AuditLog
from ringleader_api.services.users.projects import Projects
from ringleader_api.services.users.signin import SignIn
from ringleader_api.services.users.tokens import Tokens
from ringleader_api.services.users.users import Users
from ringleader_api.settings import Settings
from ringleader_api.store import Fenced, RoleLease, Store, lease_for, log_failure, require_shared
from ringleader_api.store.tables import Job
from ringleader_api.telemetry import Telemetry
from ringleader_api.tracing import Traces, traces_to
from ringleader_api.tracking import Exporter, Mlflow

log = Log("ringleader.control")
BEAT_LIMIT_S = 30.0
JOIN_S = 5.0
WRONG_PER_S, WRONG_AT_ONCE = 1.0, 20.0
"""The rate of invalid tokens at the log-in, from one address."""
TRIED_PER_S, TRIED_AT_ONCE = 20.0, 100.0
"""The rate of log-ins from one address that are checked at once; those beyond wait first, valid ones as well as
others."""
BEGUN_PER_S, BEGUN_AT_ONCE = 10.0, 200.0
"""The rate of log-ins sent on to the identity provider, from one address: each keeps a row for some minutes."""
CATCHING_UP = 1
"""Threads that read old items for followers; they compute, so that more of them would only contend for the
interpreter."""
LOG_COPIED_EVERY_S = 1.0
SENT_A_TURN = 8
"""The most short pieces of streams that are sent in one turn of the event loop."""


@dataclass(slots=True)
class Control:
    """The parts of the control plane. `leaving` is set once the process has been asked to end: streams close."""

    settings: Settings
    backend: Backend
    store: Store
    telemetry: Telemetry
    traces: Traces
    now: Clock
    credentials: Credentials
    refusals: Refusals
    users: Users
    tokens: Tokens
    projects: Projects
    secrets: Secrets
    audit: AuditLog
    submissions: Submissions
    jobs: Jobs
    faults: Faults
    intake: Intake
    feeds: Feeds
    curves: Curves
    packages: Packages
    artifacts: Artifacts
    exports: Exports
    streams: Streams
    reconciler: Reconciler
    exporter: Exporter | None
    provider: Provider | None
    signin: SignIn | None
    leases: Sequence[RoleLease] = ()
    wrong: Allowance = field(default_factory=lambda: Allowance(WRONG_PER_S, WRONG_AT_ONCE))
    tried: Allowance = field(default_factory=lambda: Allowance(TRIED_PER_S, TRIED_AT_ONCE))
    begun: Allowance = field(default_factory=lambda: Allowance(BEGUN_PER_S, BEGUN_AT_ONCE))
    log_ins: RequestTurns = field(default_factory=RequestTurns)
    """Turns of an address at looking up the tokens of log-ins: each takes a thread and a query."""
    large: Semaphore = field(default_factory=lambda: Semaphore(1))
    """Held while a large body is checked."""
    sending: Semaphore = field(default_factory=lambda: Semaphore(SENT_A_TURN))
    sending_long: Semaphore = field(default_factory=lambda: Semaphore(1))
    """Held for a turn of the event loop while a piece of a stream is sent, a short one or a long one."""
    catching_up: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(CATCHING_UP, thread_name_prefix="catching-up")
    )
    """Reads, for followers, the items older than their channel."""
    channels: dict[tuple[str, str], Any] = field(default_factory=dict)
    """The feeds that are being followed, by job and feed; the routes keep them."""
    leaving: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        """Start the reconciler, the exporter, the count of refusals, and the copying of the database's log."""
        self._spawn("refusals", self.refusals.run, COUNTED_EVERY_S)
        if not self.store.shared:
            self._spawn("log", self._copy_log, LOG_COPIED_EVERY_S)
        self._spawn("reconciler", self.reconciler.run, self.settings.tick_s)
        if self.exporter is not None:
            self._spawn("exporter", self.exporter.run, self.settings.export_every_s)

    def end(self) -> None:
        """Stop them, then let go of cluster and database. Jobs go on."""
        # First: open streams must close before the threads and the store that they read from go.
        self.leaving.set()
        self.refusals.stop()
        self.reconciler.stop()
        if self.exporter is not None:
            self.exporter.stop()
        # One deadline for all together: a thread that is stuck must not use up the grace period of the process.
        give_up_at = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
            if thread.is_alive():
                log.warning("control.thread_stuck", thread=thread.name)
        self.close()

    def close(self) -> None:
        self.refusals.close()
        self.catching_up.shutdown(cancel_futures=True)
        if self.exporter is not None:
            self.exporter.close()
        if self.provider is not None:
            self.provider.close()
        # Given up before the store closes, so that a standby takes over at once instead of after the lease.
        for lease in self.leases:
            with suppress(SQLAlchemyError):  # then it runs out
                lease.let_go()
        self.traces.close()
        self.backend.close()
        self.store.close()

    def not_ready(self) -> list[str]:
        """The reasons, in words, that keep this process from its work; empty when it is ready."""
        found = []
        try:
            self.store.ping()
        except Exception as error:  # whatever the driver raises
            found.append(f"the database does not answer ({type(error).__name__})")
        # Only where the database answers: this query would fail for the same reason, and say so twice.
        found += self._stuck_queue() if not found else []
        silent_s = time.monotonic() - self.reconciler.beat_at
        if silent_s > BEAT_LIMIT_S:
            found.append(f"the reconciler has not finished a round for {silent_s:.0f} s")
        if self.reconciler.trouble:
            found.append(f"the cluster cannot be reached: {self.reconciler.trouble}")
        return found

    def _stuck_queue(self) -> list[str]:
        """Report queued jobs that no scheduler has looked at, here or at another control plane."""
        before = self.now() - timedelta(seconds=BEAT_LIMIT_S)
        unseen = select(func.count()).where(
            Job.state == State.QUEUED,
            Job.queued_at < before,
            Job.pending_reason.is_(None),
            Job.deleted_at.is_(None),
        )
        with self.store.read() as session:
            count = session.scalar(unseen)
        return (
            [f"{count} queued jobs have not been looked at by a scheduler for {BEAT_LIMIT_S:.0f} s"]
            if count
            else []
        )

    def _copy_log(self, every_s: float) -> None:
        """Copy the write-ahead log of the database whenever something was written, until the process ends."""
        copied = -1
        while not self.leaving.wait(every_s):
            version = self.store.version
            if version == copied:
                continue
            try:
                self.store.copy_log()
                copied = version
            except SQLAlchemyError as error:  # a commit copies it, as far as the disk lets it
                log_failure(log, "control.log_not_copied", error)

    def _spawn(self, name: str, run: Callable[[float], None], every_s: float) -> None:
        # Daemons: a thread that hangs in a call to the cluster must not keep the process from ending.
        thread = threading.Thread(target=run, args=(every_s,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


@dataclass(frozen=True, slots=True)
class _Foundation:
    """The parts that others are built on.

    Attributes:
        backend: behind the reconciler's lease, as `ours` is: a replica that has lost the role does nothing.
        ours: the store for what the reconciler writes.
    """

    settings: Settings
    now: Clock
    accounts: Accounts
    store: Store
    lease: RoleLease
    ours: Fenced
    backend: RoleLeasedBackend
    telemetry: Telemetry
    traces: Traces
    exports: RoleLease
    packages: Packages
    secrets: Secrets


def build(settings: Settings, backend: Backend, now: Clock = utc_now) -> Control:
    """Open the home folder and the database, and assemble the parts."""
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    base = _foundation(settings, backend, now)
    intake = Intake(
        base.store,
        now,
        base.telemetry,
        base.secrets,
        base.traces,
        logs_kept=settings.logs_kept,
        logs_kept_bytes=settings.logs_kept_bytes,
    )
    return _control(base, intake)


def _foundation(settings: Settings, backend: Backend, now: Clock) -> _Foundation:
    home = settings.home
    accounts = Accounts.of(settings)
    store = Store.at(home, settings.database_url)
    require_shared(store, home)
    lease = lease_for(store, home, "reconciler", settings.lease_s)
    quota = PackageQuota(settings.packages_per_user, settings.package_bytes_per_user)
    kept = timedelta(days=settings.packages_kept_days)
    return _Foundation(
        settings=settings,
        now=now,
        accounts=accounts,
        store=store,
        lease=lease,
        # Writes of the reconciler go through its lease, so that a replica that has lost the role commits nothing.
        ours=Fenced(store, lease),
        backend=RoleLeasedBackend(backend, lease),
        telemetry=Telemetry(store, now),
        traces=traces_to(settings.otlp_endpoint),
        exports=lease_for(store, home, "exporter", settings.lease_s),
        packages=Packages(store, now, home, settings.max_package_bytes, kept, quota=quota),
        secrets=Secrets(store, now, home),
    )


def _control(base: _Foundation, intake: Intake) -> Control:
    settings, store, now = base.settings, base.store, base.now
    provider = _provider(settings)
    return Control(
        settings=settings,
        backend=base.backend,
        store=store,
        telemetry=base.telemetry,
        traces=base.traces,
        now=now,
        credentials=Credentials(first_token(settings.home), store, now),
        refusals=Refusals(store, now),
        users=Users(store, now),
        tokens=Tokens(store, now, timedelta(days=settings.oidc_token_days)),
        projects=Projects(store, now),
        secrets=base.secrets,
        audit=AuditLog(store),
        submissions=Submissions(store, now, base.secrets, base.accounts),
        jobs=Jobs(store, now, settings.url, grows=settings.reach is not None),
        faults=Faults(store, base.backend, now, allowed=settings.allow_faults),
        intake=intake,
        feeds=Feeds(store),
        curves=Curves(store),
        packages=base.packages,
        artifacts=Artifacts(store, settings.home),
        exports=Exports(store, accounts=base.accounts),
        streams=_streams(settings),
        reconciler=_reconciler(base, intake),
        exporter=_exporter(settings, store, base.exports),
        leases=[base.lease, base.exports],
        provider=provider,
        signin=SignIn(store, now, provider) if provider is not None else None,
    )


def _reconciler(base: _Foundation, intake: Intake) -> Reconciler:
    settings, backend, now = base.settings, base.backend, base.now
    growing = Autoscaling(
        backend,
        settings.reach,
        now,
        cool_down_s=settings.autoscale_cool_down_s,
        patience_s=settings.autoscale_patience_s,
    )
    return Reconciler(
        base.ours,
        backend,
        _launcher(base),
        growing,
        now,
        inheriting=SpoolRecovery(backend, intake, settings.home),
        forgetting=_retention(base),
        lease=base.lease,
        limits=settings.limits,
        cluster_seen=base.telemetry.cluster_up.set,
        took=base.telemetry.round_s.observe,
    )


def _launcher(base: _Foundation) -> AttemptLauncher:
    return AttemptLauncher(
        base.ours,
        base.backend,
        base.packages,
        base.secrets,
        telemetry=base.telemetry,
        traces=base.traces,
        now=base.now,
        ingest_base=base.settings.ingest_url,
        home=base.settings.home,
        accounts=base.accounts,
    )


def _retention(base: _Foundation) -> Retention:
    settings = base.settings
    return Retention(
        base.ours,
        base.backend.forget,
        settings.home,
        bool(settings.mlflow_url),
        base.now,
        kept=timedelta(days=settings.jobs_kept_days) if settings.jobs_kept_days else None,
        packages_kept=timedelta(days=settings.packages_kept_days),
        open_home=settings.run_as_folder if settings.run_as else None,
    )


def _exporter(settings: Settings, store: Store, lease: RoleLease) -> Exporter | None:
    if not settings.mlflow_url:
        return None
    return Exporter(Fenced(store, lease), Mlflow(settings.mlflow_url), lease, store.shared)


def _streams(settings: Settings) -> Streams:
    """The counts of open streams. Each holds a connection: no user, nor all of them together, may take the descriptors
    that everything else needs."""
    bounds = Bounds.within(descriptors())
    return Streams(min(settings.streams_per_user, bounds.of_user), together=bounds.streams)


def _provider(settings: Settings) -> Provider | None:
    if not settings.oidc_issuer:
        return None
    return Provider(
        settings.oidc_issuer,
        settings.oidc_client_id,
        settings.oidc_client_secret,
        f"{settings.url}/login/oidc/callback",
    )
