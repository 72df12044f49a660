"""One job, seen through the REST API."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urljoin

from ringleader.client import feed
from ringleader.client.http import Api, over_at
from ringleader.client.records import Event, LogLine, Point, Result, SystemSeries, Worker
from ringleader.client.transfers import fetch
from ringleader.errors import ApiProblem, ApiUnreachable, JobFailed, RingleaderError, WaitTimeout
from ringleader.wire.artifacts import event_file_name
from ringleader.wire.faults import Fault, FaultView
from ringleader.wire.states import State
from ringleader.wire.views import JobView

LAST_LOG_LINES = 20

OUTAGE_S = 120.0

_FIRST_POLL_S = 0.1
_SLOWEST_POLL_S = 1.0


class Job:
    """A handle on a job. `view` is the job as last seen; `refresh` looks again.

    What fetches a file raises ApiUnreachable where the connection breaks, NotWritten where the file cannot be written.
    """

    def __init__(self, api: Api, view: JobView) -> None:
        self._api = api
        self.view = view

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {self.view.name!r}, {self.state})"

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def state(self) -> State:
        return self.view.state

    @property
    def url(self) -> str:
        """The job's page."""
        # With the slash: urljoin would replace the last part of an address that has a path.
        return urljoin(self._api.url + "/", self.view.urls.page or f"jobs/{self.id}")

    @property
    def result(self) -> Result | None:
        """The job's result, once it has succeeded."""
        return Result.of(self.view.result) if self.view.result else None

    def refresh(self) -> Self:
        self.view = JobView.model_validate(self._api.get(self._path()))
        return self

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the job has ended.

        Args:
            timeout: seconds; None waits as long as the job runs. An outage of the control plane is tolerated for
                two minutes.

        Raises:
            JobFailed: it failed or was cancelled; with its reason and last log lines.
            WaitTimeout: it has not ended in time. The job goes on.
        """
        for _ in self.watch(timeout):
            pass
        return _outcome(self)

    def watch(self, timeout: float | None = None, *, outage_s: float = OUTAGE_S) -> Iterator[JobView | None]:
        """The job as it is now, again and again until it has ended: every 0.1 s at first, every second later. None
        while the control plane does not answer.

        Args:
            timeout: seconds; None watches as long as the job runs.
            outage_s: seconds without an answer that are tolerated.

        Raises:
            WaitTimeout: it has not ended in time. The job goes on.
        """
        give_up_at = over_at(timeout)
        last_seen, pause_s = time.monotonic(), _FIRST_POLL_S
        while True:
            reached = _reached(self, last_seen, outage_s)
            yield self.view if reached else None
            if reached:
                last_seen = time.monotonic()
            if self.state.ended:
                return
            if give_up_at is not None and time.monotonic() + pause_s > give_up_at:
                raise WaitTimeout(
                    f"job {self.id} is still {self.state} at step {self.view.progress.step} after {timeout:g} s.",
                    hint="It keeps running; wait again, or cancel it.",
                )
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _SLOWEST_POLL_S)

    def resize(self, min: int | None = None, max: int | None = None) -> Self:
        """Ask for another number of workers; takes effect between two steps."""
        return self._merge({"workers": {k: v for k, v in {"min": min, "max": max}.items() if v is not None}})

    def prioritize(self, priority: int) -> Self:
        """Set its priority: of the jobs that wait, a higher one is served first, and may preempt a lower one. A
        priority above 0 requires the role operator."""
        return self._merge({"priority": priority})

    def label(self, labels: Mapping[str, str | None]) -> Self:
        """Set labels, of a job in any state; None removes one. Those that are not named stay."""
        return self._merge({"labels": dict(labels)})

    def cancel(self, grace_s: float | None = None) -> Self:
        """Ask it to stop; cancelling twice is cancelling once."""
        body = {} if grace_s is None else {"grace_s": grace_s}
        self._api.request("POST", self._path("/cancel"), json=body, repeatable=True)
        return self.refresh()

    def pause(self) -> Self:
        """Ask it to save its state and to release the cluster; pausing twice is pausing once."""
        self._api.request("POST", self._path("/pause"), repeatable=True)
        return self.refresh()

    def resume(self) -> Self:
        """Queue it again; it goes on from its newest checkpoint."""
        self._api.request("POST", self._path("/resume"), repeatable=True)
        return self.refresh()

    def inject(self, fault: Fault, worker: str | None = None, *, for_s: float = 30.0) -> FaultView:
        """Inject a fault, which the job has to survive: see `wire.faults.FaultOrder`. Requires the role operator.

        Raises:
            ApiProblem: faults are not allowed, or there is no such member.
        """
        body = {"fault": fault, "worker": worker, "for_s": for_s}
        return FaultView.model_validate(self._api.request("POST", self._path("/faults"), json=body).json())

    def delete(self) -> None:
        """Forget an ended job and its files."""
        self._api.request("DELETE", self._path())

    def workers(self) -> list[Worker]:
        answer = self._api.get(self._path("/workers"))
        return [Worker.read(item) for item in (answer["items"] if isinstance(answer, dict) else answer)]

    def metrics(
        self,
        name: str,
        max_points: int | None = None,
        *,
        axis: str = "step",
        first: float | None = None,
        last: float | None = None,
    ) -> list[Point]:
        """The points of one metric, by step, thinned to `max_points` so that peaks stay.

        Args:
            axis: the unit of `first` and `last`: "step", "wall" (Unix seconds) or "relative" (seconds since the start).
        """
        bounds = {"axis": axis, "from": first, "to": last, "max_points": max_points}
        answer = self._api.get(self._path("/metrics"), {"name": name, **bounds})
        return [Point.read(item) for item in answer["points"]]

    def metric_names(self) -> list[str]:
        return list(self._api.get(self._path("/metrics"))["names"])

    def system(self, since: datetime | None = None, max_points: int | None = None) -> list[SystemSeries]:
        """What the job's nodes and workers used, every five seconds, coarser the older; of each at most `max_points`,
        those since then."""
        first = since.timestamp() if since is not None else None
        answer = self._api.get(self._path("/system"), {"from": first, "max_points": max_points})
        return [SystemSeries.read(item) for item in answer["series"]]

    def events(
        self, follow: bool = False, after: int = 0, *, reached: Callable[[bool], None] | None = None
    ) -> Iterator[Event]:
        """Events numbered above `after`; with `follow` also those to come, until the job has ended. `reached` is then
        told, again and again, whether the control plane answers."""
        return map(Event.read, self._feed("/events", follow, after, reached))

    def logs(
        self, follow: bool = False, after: int = 0, *, reached: Callable[[bool], None] | None = None
    ) -> Iterator[LogLine]:
        """Log lines numbered above `after`; with `follow` also those to come, until the job has ended. `reached` is
        then told, again and again, whether the control plane answers."""
        return map(LogLine.read, self._feed("/logs", follow, after, reached))

    def artifacts(self) -> list[dict[str, Any]]:
        """The artifacts that the job saved: name and size of each."""
        pages = self._api.pages(self._path("/artifacts"), {"limit": 200})
        return [artifact for page in pages for artifact in page["items"]]

    def download(self, name: str, path: str | Path) -> Path:
        """Fetch an artifact. The file appears at `path` whole or not at all. Raises ApiProblem: there is none."""
        return fetch(self._api, self._path(f"/artifacts/{quote(name)}"), Path(path))

    def export(self, path: str | Path) -> Path:
        """Fetch the weights as a safetensors file: of a job that has succeeded the final ones, else its newest
        checkpoint's. Raises ApiProblem: there are none yet."""
        ended = self.state is State.SUCCEEDED
        below = "/artifacts/weights" if ended else "/checkpoints/newest/weights"
        return fetch(self._api, self._path(below), Path(path))

    def report(
        self, path: str | Path, *, axis: str = "step", first: float | None = None, last: float | None = None
    ) -> Path:
        """Fetch a report on the job as it is now: one HTML file that needs no other and runs no script.

        Args:
            axis: by what curves are drawn, and the unit of `first` and `last`: "step", "wall" (Unix seconds) or
                "relative" (seconds since the start).
        """
        drawn = {"axis": axis, "from": first, "to": last}
        return fetch(self._api, self._path("/report"), Path(path), drawn)

    def tensorboard(self, folder: str | Path) -> Path:
        """Fetch the metrics as an event file of TensorBoard: each settled step once. It lies in a folder of the job's
        own below `folder`, `NAME-ID`, and takes the place of one that was fetched before."""
        # The name of a job file's has no slash; one from elsewhere must lead nowhere else.
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.view.name)
        target = Path(folder) / f"{name}-{self.id}" / event_file_name(self.id, self.view.created_at)
        return fetch(self._api, self._path("/tensorboard"), target)

    def wandb(
        self,
        project: str | None = None,
        entity: str | None = None,
        *,
        folder: str | Path | None = None,
        follow: bool = False,
    ) -> str:
        """Send the metrics to a run of Weights & Biases, under the account that its library finds: each settled step
        once, however often it is sent. Returns the run's address, or its folder where `WANDB_MODE` is `offline`.

        Args:
            project: W&B's; without one, the job's.
            folder: where W&B writes its files; without one, the working directory.
            follow: send steps as they settle, until the job has ended.
        """
        from ringleader.client.wandb_run import send  # the library is loaded only where it is used

        return send(self, project or self.view.project, entity, folder=folder, follow=follow)

    def _feed(
        self, name: str, follow: bool, after: int, reached: Callable[[bool], None] | None
    ) -> Iterator[dict[str, Any]]:
        if not follow:
            return feed.pages(self._api, self._path(name), after)
        return feed.follow(self._api, self._path(name), lambda: self._has_ended(reached), after)

    def _has_ended(self, reached: Callable[[bool], None] | None) -> bool:
        tell = reached or (lambda answered: None)
        try:
            ended = self.refresh().state.ended
        except (ApiUnreachable, ApiProblem) as error:
            tell(isinstance(error, ApiProblem) and error.status < 500)  # a refusal is an answer
            raise
        tell(True)
        return ended

    def _merge(self, change: dict[str, Any]) -> Self:
        headers = {"Content-Type": "application/merge-patch+json"}
        self.view = JobView.model_validate(
            self._api.request("PATCH", self._path(), json=change, headers=headers).json()
        )
        return self

    def _path(self, below: str = "") -> str:
        return f"/jobs/{quote(self.id, safe='')}{below}"


def _reached(job: Job, last_seen: float, outage_s: float) -> bool:
    """Look at the job again; an outage is an error only once it has lasted."""
    try:
        job.refresh()
    except (ApiUnreachable, ApiProblem) as error:
        refused = isinstance(error, ApiProblem) and error.status < 500
        if refused or time.monotonic() - last_seen > outage_s:
            raise
        return False
    return True


def _outcome(job: Job) -> Result:
    if job.result is not None and job.state is State.SUCCEEDED:
        return job.result
    if job.state is State.SUCCEEDED:
        raise RingleaderError(
            f"job {job.id} succeeded, but has no result.", hint="Please report this as a bug."
        )
    reason = job.view.reason.model_dump() if job.view.reason else None
    raise JobFailed(job.id, job.state, reason, _last_log_lines(job))


def _last_log_lines(job: Job) -> list[str]:
    try:
        return list(deque((line.line for line in job.logs()), maxlen=LAST_LOG_LINES))
    except (ApiProblem, ApiUnreachable):
        return []  # an outage now must not hide the reason
