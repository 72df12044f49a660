"""The client of one control plane: submit, find and preview jobs."""

import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from ringleader.client import profile
from ringleader.client.access import Access
from ringleader.client.alerts import Alerts
from ringleader.client.functions.function import Function, FunctionRefused, sources_of
from ringleader.client.http import PATIENCE_S, Api
from ringleader.client.job import Job
from ringleader.client.sweeps import Sweep, SweepFile, Sweeps
from ringleader.client.transfers import fetch, upload
from ringleader.spec import JobSpec
from ringleader.spec.program.entrypoint import with_framework
from ringleader.spec.working_dir import JobFileWarning, check_working_dir, root_of
from ringleader.wire import package
from ringleader.wire.lists import joined
from ringleader.wire.occupancy import OccupancyView, UsageHistory
from ringleader.wire.views import Comparison, JobGroups, JobPage, JobView

JobFile = str | Path | Mapping[str, Any] | JobSpec


class Client:
    """A client of the REST API.

    Args:
        url: address of the control plane; else RINGLEADER_URL, else the profile that `ringleader up` wrote.
        token: credential; else RINGLEADER_TOKEN, else the profile's.
        patience_s: seconds for which requests are repeated while the control plane does not answer.
        transport: another httpx transport, for tests.

    Raises:
        NoControlPlane: nothing says where to connect.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._api = Api(profile.find(url, token), transport=transport, patience_s=patience_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._api.close()

    @property
    def url(self) -> str:
        return self._api.url

    def submit(
        self, spec: JobFile, working_dir: str | Path | None = None, *, function: Function | None = None
    ) -> Job:
        """Check, pack, upload and submit a job; submitted once however often the network stutters.

        Args:
            spec: path of a job file, or the same as mapping or JobSpec.
            working_dir: folder to pack instead of the job file's, relative to the current directory. The job
                file's own `working_dir` is relative to the job file.
            function: the training function itself, in place of `entrypoint` and `working_dir`: of a script or a module
                its file is packed, with the files beside it that it imports; of a notebook the function, with the
                functions, classes, imports, numbers and text that it uses.

        Raises:
            SpecInvalid: before anything is sent.
            PackageRefused: the working directory cannot be packed.
            FunctionRefused: the function, or what it uses, cannot.
            ApiProblem: the control plane refused.

        Warns:
            JobFileWarning: of what is not in the working directory, and may be on the nodes.
        """
        body = self._uploaded(spec, working_dir, function)
        # One key for all tries of this call: the control plane makes one job of them.
        key = {"Idempotency-Key": uuid.uuid4().hex}
        answer = self._api.request("POST", "/jobs", json=body, headers=key, repeatable=True)
        return Job(self._api, JobView.model_validate(answer.json()))

    def preview(
        self, spec: JobFile, working_dir: str | Path | None = None, *, function: Function | None = None
    ) -> dict[str, Any]:
        """The answer that admission would give, without submitting."""
        body = self._uploaded(spec, working_dir, function)
        answer = self._api.request("POST", "/jobs", json=body, params={"dry_run": "true"}, repeatable=True)
        return dict(answer.json())

    def sweep(self, source: SweepFile, working_dir: str | Path | None = None) -> Sweep:
        """Check and submit a sweep: many trials of one job file. `sweeps` lists, finds and previews them.

        Args:
            source: path of a sweep file, or the same as mapping.
            working_dir: folder to pack, as for `submit`.

        Raises:
            SpecInvalid: before anything is sent.
            ApiProblem: the control plane refused the sweep, or its first trial.
        """
        return self.sweeps.submit(source, working_dir)

    @property
    def sweeps(self) -> Sweeps:
        """The sweeps that there are."""
        return Sweeps(self._api, partial(upload, self._api))

    def job(self, job_id: str) -> Job:
        """A job by its whole id. Of a name there may be several: `next(client.jobs(name="mnist"))` is the newest."""
        return Job(self._api, JobView.model_validate(self._api.get(f"/jobs/{job_id}")))

    def jobs(
        self,
        *,
        state: str | None = None,
        project: str | None = None,
        name: str | None = None,
        label: str | Iterable[str] | None = None,
        limit: int = 100,
        owner: str | None = None,
        param: str | Iterable[str] | None = None,
        search: str | None = None,
        sort: str | None = None,
        metrics: Iterable[str] = (),
    ) -> Iterator[Job]:
        """All jobs that match, newest first or as `sort` says, fetched `limit` at a time.

        Args:
            label: a label as "key=value", or several, which must all match.
            param: the same of the keys of the job files' `params`.
            search: a part of the id, of the name, or of a label as key=value.
            sort: a column ("submitted_at", "name", "state", "owner", "project", "priority", "finished_at", "duration",
                "step", "workers", "attempt"), "metric:NAME:last" (or min, max), "param:KEY" or "label:KEY"; with a
                leading "-" the greatest comes first.
            metrics: what these came to is in each job's `view.metrics`.
        """
        wanted: dict[str, Any] = {"state": state, "project": project, "name": name, "owner": owner}
        wanted |= {"search": search, "sort": sort, "label": _several(label), "param": _several(param)}
        wanted |= {"metrics": joined(metrics) or None, "limit": limit}
        for page in map(JobPage.model_validate, self._api.pages("/jobs", wanted)):
            for view in page.items:
                yield Job(self._api, view)

    def job_groups(
        self,
        by: str,
        *,
        metrics: Iterable[str] = (),
        state: str | None = None,
        project: str | None = None,
        name: str | None = None,
        owner: str | None = None,
        label: str | Iterable[str] | None = None,
        param: str | Iterable[str] | None = None,
        search: str | None = None,
    ) -> JobGroups:
        """The jobs that match, counted by a value that they have: the 200 greatest groups, and the jobs without one.

        Args:
            by: "label:KEY", or "param:KEY" for a key of the job files' `params`.
            metrics: what these came to is in the `metrics` of each group: the lowest and highest value of all its
                jobs, and the newest one of the newest job that has any.
            label: as for `jobs`, and so are the others. The `filter` of a group is the `label` or `param` that lists
                its jobs.

        Raises:
            ApiProblem: `by` is neither, or there are too many metrics.
        """
        wanted: dict[str, Any] = {"state": state, "project": project, "name": name, "owner": owner}
        wanted |= {"search": search, "label": _several(label), "param": _several(param)}
        wanted |= {"by": by, "metrics": joined(metrics) or None}
        return JobGroups.model_validate(self._api.get("/jobs/groups", wanted))

    def curves(
        self,
        jobs: Iterable[str],
        *names: str,
        axis: str = "step",
        first: float | None = None,
        last: float | None = None,
        max_points: int = 500,
    ) -> Comparison:
        """The metrics `names` (without one, the loss) of several jobs, each thinned to `max_points` so that peaks stay.

        Args:
            jobs: ids; those that cannot be read are named in `left_out`.
            axis: the unit of `first` and `last`: "step", "wall" (Unix seconds) or "relative" (seconds since the start).
        """
        wanted = {"jobs": ",".join(jobs), "names": joined(names or ("loss",)), "axis": axis}
        bounds = {"from": first, "to": last, "max_points": max_points}
        return Comparison.model_validate(self._api.get("/curves", {**wanted, **bounds}))

    def report(
        self,
        jobs: str | Iterable[str],
        path: str | Path,
        *names: str,
        axis: str = "step",
        first: float | None = None,
        last: float | None = None,
    ) -> Path:
        """Fetch a comparison of several jobs as one HTML file, which needs no other and runs no script.

        Args:
            jobs: ids, or the id of one job; those that cannot be read are named in the file as left out.
            path: the file to write.
            names: metrics; without one, all that the jobs have; 24 at most.
            axis: by what curves are drawn, and the unit of `first` and `last`, as in `curves`.

        Raises:
            ApiProblem: too many jobs or metrics.
            ApiUnreachable: the connection broke.
        """
        ids = [jobs] if isinstance(jobs, str) else jobs
        wanted = {"jobs": ",".join(ids), "names": joined(names) or None}
        drawn = {"axis": axis, "from": first, "to": last}
        return fetch(self._api, "/curves/report", Path(path), {**wanted, **drawn})

    @property
    def access(self) -> Access:
        """Users, tokens, projects, secrets and the audit log."""
        return Access(self._api)

    @property
    def alerts(self) -> Alerts:
        """Alerts that were raised, and the rules of projects."""
        return Alerts(self._api)

    def cluster(self) -> dict[str, Any]:
        """Nodes and resources of the cluster."""
        return dict(self._api.get("/cluster"))

    def occupancy(self) -> OccupancyView:
        """The occupancy of the cluster: `nodes` with the jobs on them, the `queue` in the order in which it is served,
        `projects` against their quotas, and what the autoscaler was asked for (`growing`).

        Jobs of projects that one may not read are there without their names. Without a cluster in reach, `trouble` says
        why, and there are no nodes.
        """
        return OccupancyView.model_validate(self._api.get("/cluster/occupancy"))

    def cluster_history(self, hours: int = 24) -> UsageHistory:
        """What the cluster had and jobs held of it in the last `hours` (1 to 168): columns with a value a minute."""
        return UsageHistory.model_validate(self._api.get("/cluster/history", params={"hours": hours}))

    def version(self) -> dict[str, Any]:
        """The control plane's version."""
        return dict(self._api.get("/version"))

    def _uploaded(
        self, source: JobFile, working_dir: str | Path | None, function: Function | None
    ) -> dict[str, Any]:
        """The request body, its working directory replaced by the uploaded package's digest."""
        if function is not None:
            return _with_function(self._api, source, working_dir, function)
        spec, base = _read(source)
        root = root_of(spec, base, working_dir)
        spec = with_framework(spec, root)
        for remark in check_working_dir(spec, root, base):
            warnings.warn(remark, JobFileWarning, stacklevel=3)  # where submit or preview is called
        # Only what was given: the defaults are those of the control plane, whose version may be another.
        body = spec.model_dump(mode="json", exclude_unset=True)
        return body if root is None else {**body, "working_dir": upload(self._api, package.pack(root))}


def _several(given: str | Iterable[str] | None) -> list[str] | None:
    return [given] if isinstance(given, str) else list(given or ()) or None


def _with_function(
    api: Api, source: JobFile, working_dir: str | Path | None, function: Function
) -> dict[str, Any]:
    if (
        not isinstance(source, Mapping)
        or working_dir is not None
        or {"entrypoint", "working_dir"} & source.keys()
    ):
        raise FunctionRefused(
            "function= replaces entrypoint and working_dir, and cannot be combined with them or with a job file.",
            hint="Give the other keys of the job file as a mapping: submit({'name': …}, function=train).",
        )
    found = sources_of(function)
    spec = JobSpec.parse({**source, "entrypoint": found.entrypoint})
    if isinstance(spec.requirements, str):
        raise FunctionRefused(
            f"requirements is the file {spec.requirements!r}, but a function is submitted without a working_dir.",
            hint='Give the packages as a list: {"requirements": ["einops==0.8.1", …]}.',
        )
    body = spec.model_dump(mode="json", exclude_unset=True)
    return {**body, "working_dir": upload(api, package.packed(found.files))} if found.files else body


def _read(source: JobFile) -> tuple[JobSpec, Path]:
    """The checked job file, and the folder its relative paths start from."""
    if isinstance(source, JobSpec):
        return source, Path.cwd()
    if isinstance(source, Mapping):
        return JobSpec.parse(dict(source)), Path.cwd()
    path = Path(source)
    return JobSpec.load(path), path.absolute().parent
