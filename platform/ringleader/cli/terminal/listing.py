"""Lists of jobs as tables: a line for each job, or for each group of them."""

import shlex
from collections.abc import Sequence
from datetime import datetime

from ringleader.cli.output import ago, number, table
from ringleader.text import gist
from ringleader.wire.views import GroupValues, JobGroup, JobGroups, JobView


def jobs_text(views: Sequence[JobView], metrics: Sequence[str]) -> str:
    header = ("ID", "NAME", "STATE", "STEP", "WORKERS", "AGE", *metrics, "REASON")
    return table(header, (job_row(view, metrics=metrics) for view in views), empty="no jobs")


def job_row(view: JobView, now: datetime | None = None, metrics: Sequence[str] = ()) -> tuple[str, ...]:
    """Id, name, state, steps, workers, age, the metrics and reason."""
    bounds = view.spec.get("workers", {})
    wanted = f"{bounds.get('min', 1)}-{bounds.get('max', 1)}"
    workers = f"{view.world_size} of {wanted}" if not view.state.ended else wanted
    why = view.pending_reason or view.reason
    known = view.metrics or {}
    return (
        view.id,
        view.name,
        view.state,
        steps(view),
        workers,
        ago(view.created_at, now),
        *(number(known[name].last) if name in known else "" for name in metrics),
        gist(why.message) if why else "",
    )


def steps(view: JobView) -> str:
    total = view.progress.total_steps
    return f"{view.progress.step}/{total}" if total is not None else str(view.progress.step)


def groups_text(found: JobGroups, by: str, metrics: Sequence[str]) -> str:
    """A line for each group: its value, its jobs, its metrics, and the option with which a list has its jobs."""
    columns = (f"{name}:{which}" for name in metrics for which in ("last", "min", "max"))
    option = "--label" if by.startswith("label:") else "--param"
    rows = (_group_row(one, option, metrics) for one in found.groups)
    shown = table((by, "JOBS", *columns, "FILTER"), rows, empty="no jobs")
    named = sum(one.value is not None for one in found.groups)
    more = f"\nthese are the {named} greatest groups; filter the jobs to see others."
    return shown + (more if found.more else "")


def _group_row(group: JobGroup, option: str, metrics: Sequence[str]) -> tuple[object, ...]:
    # In quotes: an empty cell stands for the jobs without a value.
    value = '""' if group.value == "" else group.value
    values = (cell for name in metrics for cell in _values(group.metrics.get(name)))
    return (value, group.jobs, *values, f"{option} {shlex.quote(group.filter)}")


def _values(of: GroupValues | None) -> tuple[str, str, str]:
    return ("", "", "") if of is None else (number(of.last), number(of.min), number(of.max))
