"""Assembles the parts of the control plane from its settings."""

from dataclasses import dataclass
from datetime import timedelta

from ringleader.home_folder import home_warning, make_home
from ringleader_api.alerting.sender import Alerting
from ringleader_api.backend import Backend
from ringleader_api.clock import Clock, utc_now
from ringleader_api.control import Control
from ringleader_api.edge.connections import Bounds, descriptors
from ringleader_api.edge.credentials import Credentials, first_token
from ringleader_api.edge.provider import Provider
from ringleader_api.edge.rate import Streams
from ringleader_api.edge.refusals import Refusals
from ringleader_api.log import Log
from ringleader_api.reconciling import (
    AttemptLauncher,
    Autoscaling,
    ClusterSampling,
    Reconciler,
    Retention,
    RoleLeasedBackend,
    SpoolRecovery,
    Sweeping,
)
from ringleader_api.reports import Reports
from ringleader_api.services.alert_checks import ChannelChecks
from ringleader_api.services.alerts import Alerts
from ringleader_api.services.jobs.changes import Jobs
from ringleader_api.services.jobs.checkpoints import Exports
from ringleader_api.services.jobs.faults import Faults
from ringleader_api.services.jobs.listing import JobList
from ringleader_api.services.jobs.submission import Submissions
from ringleader_api.services.occupancy import Occupancy
from ringleader_api.services.package_quota import PackageQuota
from ringleader_api.services.packages import Packages
from ringleader_api.services.records.artifacts import Artifacts
from ringleader_api.services.records.feeds import Feeds
from ringleader_api.services.records.ingest import Intake
from ringleader_api.services.records.metrics import Curves
from ringleader_api.services.secrets import Secrets
from ringleader_api.services.sweeps.sweeps import Sweeps
from ringleader_api.services.users.accounts import Accounts
from ringleader_api.services.users.audit import AuditLog
from ringleader_api.services.users.projects import Projects
from ringleader_api.services.users.signin import SignIn
from ringleader_api.services.users.tokens import Tokens
from ringleader_api.services.users.users import Users
from ringleader_api.settings import Settings
from ringleader_api.store import Fenced, RoleLease, Store, lease_for, require_shared
from ringleader_api.telemetry import Telemetry
from ringleader_api.tracing import Traces, traces_to
from ringleader_api.tracking import Exporter, Mlflow

log = Log("ringleader.assembly")


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
    channels: ChannelChecks
    submissions: Submissions


def build(settings: Settings, backend: Backend, now: Clock = utc_now) -> Control:
    """Open the home folder and the database, and assemble the parts. Raises HomeExposed."""
    make_home(settings.home)
    if warning := home_warning(settings.home):
        log.warning("home.shared", warning=warning)
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
    secrets = Secrets(store, now, home)
    channels = ChannelChecks.of(settings, store, secrets)
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
        secrets=secrets,
        channels=channels,
        submissions=Submissions(store, now, secrets, accounts, channels, tracked=bool(settings.mlflow_url)),
    )


def _control(base: _Foundation, intake: Intake) -> Control:
    settings, store, now = base.settings, base.store, base.now
    alerting = Alerting.of(settings, store, base.secrets, now)
    feeds, curves, provider = Feeds(store), Curves(store), Provider.of(settings)
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
        alerts=Alerts(store, now, base.channels),
        audit=AuditLog(store),
        submissions=base.submissions,
        sweeps=Sweeps(store, base.submissions, now),
        jobs=Jobs(store, now, settings.url, grows=settings.reach is not None),
        listing=JobList(store, settings.url, grows=settings.reach is not None),
        occupancy=Occupancy(store, now),
        faults=Faults(store, base.backend, now, allowed=settings.allow_faults),
        intake=intake,
        feeds=feeds,
        curves=curves,
        reports=Reports(store, curves, feeds, settings.url, now),
        packages=base.packages,
        artifacts=Artifacts(store, settings.home),
        exports=Exports(store, accounts=base.accounts),
        streams=Streams.within(Bounds.within(descriptors()), settings.streams_per_user),
        reconciler=_reconciler(base, intake),
        exporter=_exporter(settings, store, base.exports),
        alerting=alerting,
        leases=[base.lease, base.exports, alerting.lease],
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
        sweeping=Sweeping(base.ours, base.submissions, now),
        sampling=ClusterSampling(base.ours, now),
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
    return Exporter(
        Fenced(store, lease),
        Mlflow(settings.mlflow_url),
        lease,
        store.shared,
        home=settings.home,
        system=settings.mlflow_system,
    )
