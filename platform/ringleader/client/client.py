"""The client of one control plane: submit, find and preview jobs."""

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from ringleader.client import profile
from ringleader.client.access import Access
from ringleader.client.http import PATIENCE_S, Api
from ringleader.client.job import Job
from ringleader.errors import ApiProblem
from ringleader.spec import JobSpec
from ringleader.wire import package
from ringleader.wire.views import JobPage, JobView

JobFile = str | Path | Mapping[str, Any] | JobSpec
UPLOAD_TRIES = 10


class Client:
    """Talks to the REST API.

    Args:
        url: address of the control plane; else RINGLEADER_URL, else the profile that `ringleader up` wrote.
        token: credential; else RINGLEADER_TOKEN, else the profile's.
        patience_s: for repeating requests while the control plane does not answer.
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

    def submit(self, spec: JobFile, working_dir: str | Path | None = None) -> Job:
        """Check, pack, upload and submit a job; submitted once however often the network stutters.

        Args:
            spec: path of a job file, or the same as mapping or JobSpec.
            working_dir: folder to pack instead of the job file's, relative to the current directory. The job
                file's own `working_dir` is relative to the job file.

        Raises:
            SpecInvalid: before anything is sent.
            PackageRefused: the working directory cannot be packed.
            ApiProblem: the control plane refused.
        """
        body = self._uploaded(spec, working_dir)
        key = {"Idempotency-Key": uuid.uuid4().hex}
        answer = self._api.request("POST", "/jobs", json=body, headers=key, repeatable=True)
        return Job(self._api, JobView.model_validate(answer.json()))

    def preview(self, spec: JobFile, working_dir: str | Path | None = None) -> dict[str, Any]:
        """What admission would say, without submitting."""
        body = self._uploaded(spec, working_dir)
        answer = self._api.request("POST", "/jobs", json=body, params={"dry_run": "true"}, repeatable=True)
        return dict(answer.json())

    def job(self, job_id: str) -> Job:
        """A job by its whole id."""
        return Job(self._api, JobView.model_validate(self._api.get(f"/jobs/{job_id}")))

    def jobs(
        self,
        *,
        state: str | None = None,
        project: str | None = None,
        name: str | None = None,
        label: str | None = None,
        limit: int = 100,
    ) -> Iterator[Job]:
        """All jobs that match, newest first, fetched `limit` at a time."""
        wanted = {"state": state, "project": project, "name": name, "label": label, "limit": limit}
        cursor = None
        while True:
            page = JobPage.model_validate(self._api.get("/jobs", {**wanted, "cursor": cursor}))
            for view in page.items:
                yield Job(self._api, view)
            if (cursor := page.next_cursor) is None:
                return

    @property
    def access(self) -> Access:
        """Users, tokens, projects, secrets and the audit log."""
        return Access(self._api)

    def cluster(self) -> dict[str, Any]:
        """Nodes and resources of the cluster."""
        return dict(self._api.get("/cluster"))

    def version(self) -> dict[str, Any]:
        """The control plane's version."""
        return dict(self._api.get("/version"))

    def _uploaded(self, source: JobFile, working_dir: str | Path | None) -> dict[str, Any]:
        """The request body, its working directory replaced by the uploaded package's digest."""
        spec, base = _read(source)
        folder = working_dir if working_dir is not None else spec.working_dir
        body = spec.model_dump(mode="json", exclude_unset=True)
        if working_dir is None and (folder is None or str(folder).startswith("sha256:")):
            return body
        data = package.pack((Path.cwd() if working_dir is not None else base) / str(folder))
        return {**body, "working_dir": self._upload(data)}

    def _upload(self, data: bytes) -> str:
        name = package.digest(data)
        try:
            self._api.request("HEAD", f"/packages/{name}")
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            self._send(name, data, int(problem.headers.get("Upload-Offset", 0)))
        return name

    def _send(self, name: str, data: bytes, offset: int) -> None:
        """The rest of it, from `offset` on; the answer to a wrong beginning says what is there."""
        for left in reversed(range(UPLOAD_TRIES)):
            headers = {"Content-Type": "application/zip", "Upload-Offset": str(offset)}
            try:
                self._api.request("PUT", f"/packages/{name}", content=data[offset:], headers=headers)
            except ApiProblem as problem:
                if problem.code != "bad_upload" or not left:
                    raise
                offset = int(problem.errors[0]["value"])
            else:
                return


def _read(source: JobFile) -> tuple[JobSpec, Path]:
    """The checked job file, and the folder its relative paths start from."""
    if isinstance(source, JobSpec):
        return source, Path.cwd()
    if isinstance(source, Mapping):
        return JobSpec.parse(dict(source)), Path.cwd()
    path = Path(source)
    return JobSpec.load(path), path.absolute().parent
