"""The sections of a report that set jobs side by side: which they are, their last values, what their job files differ
in."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ringleader.wire.disclosure import for_strangers
from ringleader.wire.views import JobView, MetricValues
from ringleader_api.reports.chart import number
from ringleader_api.reports.document import Section, Table, cut, seconds, when

MAX_KEYS = 100
"""The most keys of job files that are shown."""
CUT_VALUE = 120
_LONGEST_PATH = 500


def labels_of(jobs: Sequence[JobView]) -> dict[str, str]:
    """The name of each job by its id, with the end of the id where several have that name."""
    often = Counter(job.name for job in jobs)
    return {job.id: job.name if often[job.name] == 1 else f"{job.name} ({job.id[-5:]})" for job in jobs}


def overview(jobs: Sequence[JobView], labels: Mapping[str, str], gone: Sequence[str]) -> Section:
    """The jobs; those that are gone, or not for the reader, are named."""
    notes = (
        [f"Left out: {', '.join(map(cut, gone))}. No such job, or none that you can read."] if gone else []
    )
    rows = [
        (
            cut(labels[job.id]),
            job.id,
            job.project,
            job.state.value,
            str(job.progress.step),
            str(job.totals.attempts),
            str(job.totals.recoveries),
            str(job.totals.steps_lost),
            seconds(job.totals.wall_s),
            when(job.finished_at),
        )
        for job in jobs
    ]
    head = (
        "Run",
        "Job",
        "Project",
        "State",
        "Steps",
        "Attempts",
        "Recoveries",
        "Steps lost",
        "Time",
        "Ended",
    )
    return Section("Jobs", notes, table=Table(head, rows) if rows else None)


def last_values(
    jobs: Sequence[JobView],
    labels: Mapping[str, str],
    names: Sequence[str],
    values: Mapping[str, Mapping[str, MetricValues]],
) -> Section:
    """Each metric's last value, with the lowest and the highest."""
    if not names:
        return Section("Last values", ["None."])
    rows = [
        (cut(labels[job.id]), *(_range(values.get(job.id, {}).get(name)) for name in names)) for job in jobs
    ]
    notes = ["The last value, and in parentheses the lowest and the highest."]
    return Section("Last values", notes, table=Table(("Run", *map(cut, names)), rows))


def differences(jobs: Sequence[JobView], labels: Mapping[str, str]) -> Section:
    """The keys of the job files in which they differ, side by side."""
    title = "Job files: what differs"
    specs = [_flat(for_strangers(job.spec)) for job in jobs]
    keys = dict.fromkeys(key for spec in specs for key in spec)
    different = [key for key in keys if key != "name" and len({spec.get(key) for spec in specs}) > 1]
    if not different:
        return Section(title, ["Nothing but names."])
    beyond = len(different) - MAX_KEYS
    rows = [
        (cut(key, CUT_VALUE), *(cut(spec.get(key, "–"), CUT_VALUE) for spec in specs))
        for key in different[:MAX_KEYS]
    ]
    notes = [f"{beyond} more keys are left out."] if beyond > 0 else []
    return Section(title, notes, table=Table(("Key", *(cut(labels[job.id]) for job in jobs)), rows))


def _range(values: MetricValues | None) -> str:
    if values is None:
        return "–"
    return f"{number(values.last)} ({number(values.min)} to {number(values.max)})"


def _flat(spec: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """The leaves of a job file by dotted keys, as JSON; below a very long key its whole value is one."""
    found: dict[str, str] = {}
    for key, value in spec.items():
        # Each leaf repeats the keys above it.
        if isinstance(value, dict) and value and len(before) + len(key) <= _LONGEST_PATH:
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return found
