"""Jobs and cluster as last seen, in a few lines and a table."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from ringleader.cli.output import duration, table
from ringleader.cli.terminal.listing import job_row
from ringleader.cli.terminal.pace import Pace, left_s, rate
from ringleader.client import Client
from ringleader.wire.states import State
from ringleader.wire.views import JobView

MOST_JOBS = 200  # one page
ORDER = (State.RUNNING, State.RECOVERING, State.STARTING, State.STOPPING, State.QUEUED, State.PAUSED)
"""Of states, from the top; behind them is what has ended."""
COLUMNS = {
    "ID": 130,
    "NAME": 0,
    "STATE": 0,
    "STEP": 60,
    "DONE": 0,
    "STEPS/S": 70,
    "LEFT": 0,
    "WORKERS": 60,
    "AGE": 50,
    "REASON": 100,
}
"""How wide the terminal has to be for each."""
PACED = ("STEPS/S", "LEFT")


@dataclass(frozen=True, slots=True)
class Overview:
    """Jobs and cluster as last seen, and the pace of jobs by id, where it is known."""

    jobs: Sequence[JobView]
    cluster: Mapping[str, Any]
    steps_per_s: Mapping[str, float | None]
    at: datetime


class OverviewReader:
    """Reads overviews: one request for the jobs, and one for the cluster."""

    def __init__(self, client: Client, *, state: str | None, project: str | None) -> None:
        self._client = client
        self._state, self._project = state, project
        self._paces: dict[str, Pace] = {}

    def look(self, now_s: float) -> Overview:
        found = self._client.jobs(state=self._state, project=self._project, limit=MOST_JOBS)
        jobs = ordered(job.view for job in islice(found, MOST_JOBS))
        # Of the jobs that are listed now: a pager may run for days.
        self._paces = {view.id: self._paces.get(view.id) or Pace() for view in jobs if not view.state.ended}
        for view in jobs:
            if view.id in self._paces:
                self._paces[view.id].look(now_s, view)
        paces = {job_id: pace.steps_per_s for job_id, pace in self._paces.items()}
        return Overview(jobs, self._client.cluster(), paces, datetime.now(UTC))


def ordered(jobs: Iterable[JobView]) -> list[JobView]:
    """Running ones first; of one state in the order that they came in."""
    return sorted(jobs, key=lambda view: ORDER.index(view.state) if view.state in ORDER else len(ORDER))


def heading(seen: Overview) -> list[str]:
    """The sums over all jobs and nodes, in two lines."""
    counts = Counter(view.state for view in seen.jobs)
    known = [f"{counts[state]} {state}" for state in State if counts[state]]
    more = f" of the newest {MOST_JOBS}" if len(seen.jobs) == MOST_JOBS else ""
    return [f"jobs{more}: {', '.join(known) or 'none'}", f"cluster: {_resources(seen.cluster)}"]


def columns(width: int | None) -> list[str]:
    """Those for which there is room; all without a width."""
    return [name for name, least in COLUMNS.items() if width is None or width >= least]


def rows(seen: Overview, shown: Sequence[str], width: int | None = None) -> list[str]:
    """A table of these columns: its header, and a line a job."""
    cells = (_cells(view, seen) for view in seen.jobs)
    return table(shown, ([row[name] for name in shown] for row in cells), "no jobs", width).splitlines()


def _cells(view: JobView, seen: Overview) -> dict[str, str]:
    job_id, name, state, step, workers, age, reason = job_row(view, seen.at)
    pace, total = seen.steps_per_s.get(view.id), view.progress.total_steps
    left = left_s(view, pace)
    return {
        "ID": job_id,
        "NAME": name,
        "STATE": state,
        "STEP": step,
        "DONE": f"{100 * min(view.progress.step, total) // total}%" if total else "",
        "STEPS/S": rate(pace) if pace else "",
        "LEFT": duration(math.ceil(left)) if left else "",
        "WORKERS": workers,
        "AGE": age,
        "REASON": reason,
    }


def _resources(cluster: Mapping[str, Any]) -> str:
    if not cluster.get("reachable", True):
        return f"out of reach: {cluster.get('trouble') or 'for no known reason'}"
    nodes = len(cluster.get("nodes", ()))
    parts = [f"{nodes} node{'' if nodes == 1 else 's'}"]
    for name, unit in (("cpus", "CPUs"), ("gpus", "GPUs"), ("memory_gb", "GB of memory")):
        if cluster.get(name):
            parts.append(f"{round(cluster[name], 1):g} {unit}")
    return ", ".join(parts)
