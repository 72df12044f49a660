"""A trace for each job, from the request that submitted it to its first step; off unless a collector is configured.

The ids of a job's trace and of its root are made of the job's id, so that whichever control plane tells a part of it
tells it of the same trace. Needs the extra `otel`.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ringleader.errors import RingleaderError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from ringleader_api.store.tables import Job


class TracingMissing(RingleaderError):
    """A collector is configured, but the package that speaks to it is not installed."""

    code = "tracing_missing"


class Traces(Protocol):
    """The trace of a job up to its first step. Never raises, never waits for a collector."""

    def told(self, job_id: str, name: str, began: datetime, ended: datetime) -> None:
        """Record one span of the job's start."""

    def first_step(self, job: "Job", at: datetime) -> None:
        """Record the whole start, by the times in the job's row, and its parts: queued, starting, until the first
        step."""

    def close(self) -> None:
        """Send what is still buffered."""


class Untraced:
    """Traces that go nowhere."""

    def told(self, job_id: str, name: str, began: datetime, ended: datetime) -> None: ...

    def first_step(self, job: "Job", at: datetime) -> None: ...

    def close(self) -> None: ...


UNTRACED = Untraced()


class TracedRequest:
    """Spans to an exporter, in batches from a thread of their own.

    Args:
        at_once: spans are handed over as they end.
    """

    def __init__(self, exporter: "SpanExporter", at_once: bool = False) -> None:
        # Imported here: OpenTelemetry is an extra, and the control plane starts without it.
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        # OpenTelemetry draws ids itself; the only way to choose them is a generator that looks here first.
        wanted = self._wanted = _Wanted()

        class Ids(RandomIdGenerator):
            def generate_trace_id(self) -> int:
                return wanted.trace or super().generate_trace_id()

            def generate_span_id(self) -> int:
                return wanted.span or super().generate_span_id()

        resource = Resource.create({SERVICE_NAME: "ringleader"})
        self._provider = TracerProvider(id_generator=Ids(), resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            SimpleSpanProcessor(exporter) if at_once else BatchSpanProcessor(exporter)
        )
        self._tracer = self._provider.get_tracer("ringleader")

    def told(self, job_id: str, name: str, began: datetime, ended: datetime) -> None:
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        trace, root = _ids(job_id)
        # The root is not stored anywhere: a remote parent with the derived id links the parts to it.
        parent = SpanContext(trace, root, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        context = set_span_in_context(NonRecordingSpan(parent))
        span = self._tracer.start_span(
            name, context, attributes={"ringleader.job_id": job_id}, start_time=_ns(began)
        )
        span.end(_ns(ended))

    def first_step(self, job: "Job", at: datetime) -> None:
        attributes: dict[str, str | int] = {
            "ringleader.job_id": job.id,
            "ringleader.project": job.project,
            "ringleader.attempt": job.attempt,
        }
        with self._wanted.to_be(*_ids(job.id)):
            root = self._tracer.start_span("job", attributes=attributes, start_time=_ns(job.created_at))
        root.end(_ns(at))
        starting, running = job.attempt_at or at, job.running_since or at
        self.told(job.id, "queued", job.queued_at, starting)
        self.told(job.id, "starting", starting, running)
        self.told(job.id, "first step", running, at)

    def close(self) -> None:
        self._provider.shutdown()


class _Wanted(threading.local):
    """The ids that the next span of this thread gets; 0 leaves them to chance."""

    trace = 0
    span = 0

    @contextmanager
    def to_be(self, trace: int, span: int) -> Iterator[None]:
        self.trace, self.span = trace, span
        try:
            yield
        finally:
            self.trace = self.span = 0


def traces_to(endpoint: str) -> Traces:
    """The traces for the collector at `endpoint` (OTLP over HTTP); none where it is empty. Raises TracingMissing."""
    if not endpoint:
        return UNTRACED
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise TracingMissing(
            f"RINGLEADER_OTLP_ENDPOINT={endpoint} is set, but OpenTelemetry is not installed.",
            hint="pip install 'ringleader[otel]'",
        ) from None
    return TracedRequest(OTLPSpanExporter(endpoint))


def _ids(job_id: str) -> tuple[int, int]:
    digest = hashlib.sha256(job_id.encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")


def _ns(at: datetime) -> int:
    # Through microseconds: a float of seconds since 1970 does not resolve a nanosecond.
    return round(at.timestamp() * 1e6) * 1000
