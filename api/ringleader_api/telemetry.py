"""The metrics served at /metrics: counters kept here, job counts read from the store at each scrape."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from ringleader.wire.states import State
from ringleader_api.clock import Clock
from ringleader_api.store import Store
from ringleader_api.store.tables import Job


class Telemetry:
    """One registry per application, so that tests can have several."""

    def __init__(self, store: Store, now: Clock) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_JobsByState(store, now))
        self.submissions = Counter("ringleader_submissions", "Jobs accepted.", registry=self.registry)
        self.recoveries = Counter("ringleader_recoveries", "Recoveries reported.", registry=self.registry)
        self.scheduling = Histogram(
            "ringleader_scheduling_seconds",
            "Time from queued to a confirmed supervisor.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600),
            registry=self.registry,
        )
        self.cluster_up = Gauge(
            "ringleader_cluster_up", "1 while the cluster answers the reconciler.", registry=self.registry
        )
        self._requests = Histogram(
            "ringleader_http_request_seconds",
            "HTTP request duration by route.",
            ("method", "route", "status"),
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
            registry=self.registry,
        )

        self.recovery_s = Histogram(
            "ringleader_recovery_seconds",
            "Time from a loss to the next committed step, as reported by supervisors.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
            registry=self.registry,
        )
        self.round_s = Histogram(
            "ringleader_reconciler_round_seconds",
            "Duration of the reconciler's rounds, including the scheduler's pass.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
            registry=self.registry,
        )

    def watch(self, name: str, words: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is asked for at each scrape."""
        Gauge(name, words, registry=self.registry).set_function(value)

    def observe(self, method: str, route: str, status: int, took_s: float) -> None:
        self._requests.labels(method, route, str(status)).observe(took_s)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _JobsByState(Collector):
    def __init__(self, store: Store, now: Clock) -> None:
        self._store = store
        self._now = now

    def describe(self) -> Iterable[Metric]:
        # Gives the registry the names, so that registering the collector queries no database.
        return [
            GaugeMetricFamily("ringleader_jobs", "Jobs by state.", labels=("state",)),
            GaugeMetricFamily(
                "ringleader_queue_longest_wait_seconds",
                "Wait so far of the job that has been queued longest.",
            ),
        ]

    def collect(self) -> Iterable[Metric]:
        query = select(Job.state, func.count()).where(Job.deleted_at.is_(None)).group_by(Job.state)
        waiting = select(func.min(Job.queued_at)).where(Job.state == State.QUEUED, Job.deleted_at.is_(None))
        with self._store.read() as session:
            oldest = session.scalar(waiting)
            counts: dict[State, int] = {state: count for state, count in session.execute(query)}  # noqa: C416 (typed)
        family = GaugeMetricFamily("ringleader_jobs", "Jobs by state.", labels=("state",))
        for state in State:
            family.add_metric((state.value,), counts.get(state, 0))
        longest = GaugeMetricFamily(
            "ringleader_queue_longest_wait_seconds", "Wait so far of the job that has been queued longest."
        )
        waits_s = 0.0 if oldest is None else (self._now() - oldest).total_seconds()
        # Never negative: `queued_at` may be another replica's time, whose clock is ahead.
        longest.add_metric((), max(0.0, waits_s))
        return [family, longest]
