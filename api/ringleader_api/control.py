"""Everything a route may call, and the threads that run beside it."""

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
from ringleader_api.alerting.sender import EVERY_S, Alerting
from ringleader_api.backend import Backend
from ringleader_api.clock import Clock
from ringleader_api.edge.credentials import Credentials
from ringleader_api.edge.provider import Provider
from ringleader_api.edge.rate import Allowance, Streams
from ringleader_api.edge.refusals import COUNTED_EVERY_S, Refusals
from ringleader_api.edge.request_turns import RequestTurns
from ringleader_api.log import Log
from ringleader_api.reconciling import (
    Reconciler,
)
from ringleader_api.reports import Reports
from ringleader_api.services.alerts import Alerts
from ringleader_api.services.jobs.changes import Jobs
from ringleader_api.services.jobs.checkpoints import Exports
from ringleader_api.services.jobs.faults import Faults
from ringleader_api.services.jobs.listing import JobList
from ringleader_api.services.jobs.submission import Submissions
from ringleader_api.services.occupancy import Occupancy
from ringleader_api.services.packages import Packages
from ringleader_api.services.records.artifacts import Artifacts
from ringleader_api.services.records.feeds import Feeds
from ringleader_api.services.records.ingest import Intake
from ringleader_api.services.records.metrics import Curves
from ringleader_api.services.secrets import Secrets
from ringleader_api.services.sweeps.sweeps import Sweeps
from ringleader_api.services.users.audit import AuditLog
from ringleader_api.services.users.projects import Projects
from ringleader_api.services.users.signin import SignIn
from ringleader_api.services.users.tokens import Tokens
from ringleader_api.services.users.users import Users
from ringleader_api.settings import Settings
from ringleader_api.store import RoleLease, Store, log_failure
from ringleader_api.store.tables import Job
from ringleader_api.telemetry import Telemetry
from ringleader_api.tracing import Traces
from ringleader_api.tracking import Exporter

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
    alerts: Alerts
    audit: AuditLog
    submissions: Submissions
    jobs: Jobs
    sweeps: Sweeps
    listing: JobList
    occupancy: Occupancy
    faults: Faults
    intake: Intake
    feeds: Feeds
    curves: Curves
    reports: Reports
    packages: Packages
    artifacts: Artifacts
    exports: Exports
    streams: Streams
    reconciler: Reconciler
    exporter: Exporter | None
    alerting: Alerting
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
    looking: Semaphore = field(default_factory=lambda: Semaphore(1))
    """Held while somebody is told who takes what of the cluster."""
    exporting: Semaphore = field(default_factory=lambda: Semaphore(1))
    """Held while a piece of somebody's metrics is written for TensorBoard."""
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
        """Start all that runs beside the requests."""
        self._spawn("refusals", self.refusals.run, COUNTED_EVERY_S)
        if not self.store.shared:
            self._spawn("log", self._copy_log, LOG_COPIED_EVERY_S)
        self._spawn("reconciler", self.reconciler.run, self.settings.tick_s)
        self._spawn("alerts", self.alerting.run, EVERY_S)
        if self.exporter is not None:
            self._spawn("exporter", self.exporter.run, self.settings.export_every_s)

    def end(self) -> None:
        """Stop them, then let go of cluster and database. Jobs go on."""
        # First: open streams must close before the threads and the store that they read from go.
        self.leaving.set()
        self.refusals.stop()
        self.reconciler.stop()
        self.alerting.stop()
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
