"""The sections of a report that tell of one job: what it is, how it ended, who came and went, its job file."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ringleader.wire.disclosure import for_strangers, without_credentials
from ringleader.wire.views import EventView, JobView, MetricValues, Result
from ringleader_api.reports.chart import number
from ringleader_api.reports.document import CUT_TEXT, Section, Table, cut, seconds, when

STATES = "job."
MEMBERS = ("worker.joined", "worker.left", "worker.lost", "generation.formed")
RECOVERED = ("recovered",)
PHASES = ("detect", "decide", "regroup", "heal", "redo", "total")
SCORES = 100
_LONGEST_S = 1e9
LONG = 4000
"""The most characters of a reason: it may be a traceback."""


def summary(job: JobView) -> Section:
    total = "" if job.progress.total_steps is None else f" of {job.progress.total_steps}"
    totals = job.totals
    why = job.reason or job.pending_reason
    facts = [
        ("State", job.state.value),
        *([("Why", cut(without_credentials(why.message), LONG))] if why else []),
        ("Job", job.id),
        ("Project", job.project),
        ("Owner", job.owner),
        ("Labels", cut(", ".join(f"{key}={value}" for key, value in job.labels.items()), LONG)),
        ("Entrypoint", cut(job.spec.get("entrypoint"))),
        ("Submitted", when(job.created_at)),
        ("Started", when(job.started_at)),
        ("Ended", when(job.finished_at)),
        ("Steps", f"{job.progress.step}{total}, epoch {job.progress.epoch}"),
        ("Attempts", str(totals.attempts)),
        ("Generations", str(totals.generations)),
        ("Recoveries", f"{totals.recoveries}, {totals.steps_lost} steps lost"),
        ("Failures", f"{job.failures.spent} of {job.failures.max} spent"),
        ("Training", spent(totals.wall_s, totals)),
        ("Page", job.urls.page),
    ]
    return Section("Summary", facts=[(name, value) for name, value in facts if value])


def outcome(result: Result) -> Section:
    """The result of a job that has succeeded."""
    scores = list(result.scores.items())
    facts = [
        ("Loss", number(result.loss)),
        *((cut(name), number(score)) for name, score in scores[:SCORES]),
        ("Steps", str(result.steps)),
        ("Rows", str(result.samples)),
        ("Reproducible", "yes" if result.reproducible else f"no: {result.reproducible_why}"),
        ("Weights", f"sha256 {result.weights_sha256}"),
    ]
    beyond = len(scores) - SCORES
    return Section("Result", notes=[f"{beyond} more scores are left out."] if beyond > 0 else [], facts=facts)


def spent(wall_s: float, parts: Any) -> str:
    """The time of training and its parts."""
    named = {
        "compute": parts.compute_s,
        "exposed communication": parts.exposed_communication_s,
        "idle": parts.idle_s,
        "recovery": parts.recovery_s,
    }
    told = ", ".join(f"{name} {seconds(value)}" for name, value in named.items())
    return f"{seconds(wall_s)} ({told})"


def last_values(values: Mapping[str, MetricValues], count: int) -> Section:
    """The values of each metric; `count` is the number of all that there are."""
    rows = [
        (cut(name), number(one.last), str(one.step), number(one.min), number(one.max))
        for name, one in values.items()
    ]
    return _rows("Last values", ("Metric", "Last", "At step", "Lowest", "Highest"), rows, count, "first")


def history(events: Sequence[EventView], count: int) -> Section:
    rows = [
        (when(one.at), str(one.attempt), one.type.removeprefix(STATES), cut(_why(one.data))) for one in events
    ]
    return _rows("History", ("Time", "Attempt", "State", "Why"), rows, count)


def members(events: Sequence[EventView], count: int) -> Section:
    rows = [
        (
            when(one.at),
            str(one.attempt),
            str(one.generation),
            one.type.replace(".", " "),
            _member(one.data),
            cut(one.data.get("step")),
            cut(one.data.get("cause")),
        )
        for one in events
    ]
    head = ("Time", "Attempt", "Generation", "What", "Member", "Step", "Cause")
    return _rows("Members", head, rows, count)


def recoveries(events: Sequence[EventView], count: int) -> Section:
    rows = [
        (
            when(one.at),
            str(one.attempt),
            cut(one.data.get("step")),
            *(_time(one.data.get(f"{phase}_s")) for phase in PHASES),
            cut(one.data.get("steps_lost")),
        )
        for one in events
    ]
    head = ("Time", "Attempt", "Step", *(phase.capitalize() for phase in PHASES), "Steps lost")
    return _rows("Recoveries", head, rows, count)


def job_file(spec: Mapping[str, Any]) -> Section:
    text = yaml.safe_dump(for_strangers(spec), sort_keys=False, allow_unicode=True)
    return Section("Job file as accepted", text=cut(text, CUT_TEXT))


def _rows(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], count: int, which: str = "newest"
) -> Section:
    if not rows:
        return Section(title, notes=["None."])
    left = count - len(rows)
    notes = [f"The {which} {len(rows)} of {count}."] if left > 0 else []
    return Section(title, notes=notes, table=Table(head, rows))


def _why(data: Mapping[str, Any]) -> str:
    reason = data.get("reason")
    told = reason.get("message") if isinstance(reason, dict) else data.get("message")
    return without_credentials(str(told or (f"by {data['who']}" if data.get("who") else "")))


def _member(data: Mapping[str, Any]) -> str:
    if isinstance(among := data.get("members"), list):
        return f"{len(among)} members"
    rank = data.get("rank")
    return cut(data.get("worker")) + (f" (rank {cut(rank)})" if rank is not None else "")


def _time(value: object) -> str:
    """A time that an event tells, as people read it; a dash where it tells none."""
    # The job's own process told it: it may be any JSON.
    return seconds(value) if isinstance(value, (int, float)) and 0 <= value <= _LONGEST_S else "–"
