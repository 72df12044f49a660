"""MLflow's REST interface: the few calls that the exporter makes, each with a deadline.

Spoken over httpx instead of the mlflow package: importing that costs the API 1.4 s and 160 MB at every start, retries
for minutes on its own, and reports home unless told not to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from ringleader.client.unix_socket import ClientRoute
from ringleader.errors import RingleaderError

DEADLINE_S = 10.0
LARGE_DEADLINE_S = 300.0
JOB_TAG = "ringleader.job_id"


class TrackerDown(RingleaderError):
    """MLflow does not answer, or says that it cannot now: try later."""

    code = "tracker_down"


class TrackerRefused(RingleaderError):
    """MLflow refuses this run's data; repeating the call will not help soon."""

    code = "tracker_refused"


@dataclass(frozen=True, slots=True)
class MlflowPoint:
    """One metric value as MLflow keeps it. `at_ms`: milliseconds since 1970."""

    key: str
    value: float
    at_ms: int
    step: int


class Mlflow:
    """One server. `url` includes its static prefix."""

    def __init__(self, url: str) -> None:
        # No proxies from the environment: the server is on loopback or named on purpose.
        way = ClientRoute.to(url.rstrip("/") + "/api/2.0")
        self._http = httpx.Client(
            base_url=way.url, timeout=DEADLINE_S, trust_env=False, transport=httpx.HTTPTransport(uds=way.uds)
        )

    def close(self) -> None:
        self._http.close()

    def experiment(self, name: str) -> str:
        """The experiment's id; the experiment is created when it does not exist, and restored when it was deleted."""
        found = self._call("GET", "/experiments/get-by-name", {"experiment_name": name}, absent_ok=True)
        if found is None:
            return str(self._call("POST", "/experiments/create", {"name": name})["experiment_id"])
        experiment = found["experiment"]
        if experiment.get("lifecycle_stage") == "deleted":
            self._call("POST", "/experiments/restore", {"experiment_id": experiment["experiment_id"]})
        return str(experiment["experiment_id"])

    def find_run(self, experiment_id: str, job_id: str) -> str | None:
        """The run of this job, if it was created before; None otherwise."""
        body = {
            "experiment_ids": [experiment_id],
            # Backticks: the name of the tag has a dot.
            "filter": f"tags.`{JOB_TAG}` = '{job_id}'",
            # Deleted runs, too: one that somebody has deleted is not made a second time.
            "run_view_type": "ALL",
            "max_results": 1,
        }
        runs = self._call("POST", "/runs/search", body).get("runs", [])
        return str(runs[0]["info"]["run_id"]) if runs else None

    def create_run(self, experiment_id: str, name: str, start_ms: int, tags: dict[str, str]) -> str:
        body = {
            "experiment_id": experiment_id,
            "run_name": name,
            "start_time": start_ms,
            "tags": [{"key": k, "value": v} for k, v in tags.items()],
        }
        return str(self._call("POST", "/runs/create", body)["run"]["info"]["run_id"])

    def log_params(self, run_id: str, params: Sequence[tuple[str, str]]) -> None:
        self._log(run_id, params=[{"key": k, "value": v} for k, v in params])

    def log_metrics(self, run_id: str, points: Sequence[MlflowPoint]) -> None:
        rows = [{"key": p.key, "value": p.value, "timestamp": p.at_ms, "step": p.step} for p in points]
        self._log(run_id, metrics=rows)

    def log_tags(self, run_id: str, tags: dict[str, str]) -> None:
        if not tags:
            return
        self._log(run_id, tags=[{"key": k, "value": v} for k, v in tags.items()])

    def history(self, run_id: str, key: str) -> Iterator[MlflowPoint]:
        """All values that the run holds of one metric."""
        query: dict[str, Any] = {"run_id": run_id, "metric_key": key, "max_results": 20_000}
        while True:
            answer = self._call("GET", "/metrics/get-history", query)
            for row in answer.get("metrics", []):
                yield MlflowPoint(
                    row["key"], float(row["value"]), int(row["timestamp"]), int(row.get("step", 0))
                )
            if not (token := answer.get("next_page_token")):
                return
            query["page_token"] = token

    def artifact_uri(self, run_id: str) -> str:
        return str(self._call("GET", "/runs/get", {"run_id": run_id})["run"]["info"]["artifact_uri"])

    def artifact_folder(self, run_id: str) -> str | None:
        """The place of the run's artifacts behind the server; None where clients write to them past it."""
        uri = urlsplit(self.artifact_uri(run_id))
        return uri.path.strip("/") if uri.scheme == "mlflow-artifacts" else None

    def put_artifact(self, path: str, content: bytes) -> None:
        """Write a file of a run; the same one again changes nothing."""
        self._answer("PUT", f"/mlflow-artifacts/artifacts/{quote(path)}", {"content": content})

    def put_file(self, path: str, file: Path) -> None:
        """The same for a file that may be large: it is sent as it is read."""
        with file.open("rb") as content:
            # Longer for the answer: MLflow gives it once all of it lies in its own store.
            asked = {"content": content, "timeout": httpx.Timeout(DEADLINE_S, read=LARGE_DEADLINE_S)}
            self._answer("PUT", f"/mlflow-artifacts/artifacts/{quote(path)}", asked)

    def artifact_sizes(self, run_id: str, folder: str) -> dict[str, int]:
        """The bytes of each file in a folder of the run's artifacts, by name."""
        answer = self._call("GET", "/artifacts/list", {"run_id": run_id, "path": folder})
        return {
            str(one["path"]).rpartition("/")[2]: int(one["file_size"])
            for one in answer.get("files", [])
            if not one.get("is_dir")
        }

    def model_tags(self, name: str, tags: dict[str, str]) -> dict[str, str]:
        """The tags of a model in the registry, which is made with these where it does not exist."""
        found = self._call("GET", "/registered-models/get", {"name": name}, absent_ok=True)
        if found is None:
            body = {"name": name, "tags": [{"key": k, "value": v} for k, v in tags.items()]}
            found = self._call("POST", "/registered-models/create", body)
        return {tag["key"]: tag.get("value", "") for tag in found["registered_model"].get("tags", [])}

    def model_version(self, name: str, run_id: str) -> str | None:
        """The version of the model that was made of this run; None: there is none."""
        found = self._call("GET", "/model-versions/search", {"filter": f"run_id = '{run_id}'"})
        numbers = [str(one["version"]) for one in found.get("model_versions", []) if one["name"] == name]
        return numbers[0] if numbers else None

    def create_version(self, name: str, source: str, run_id: str, tags: dict[str, str]) -> str:
        """A new version of the model, made of the files at `source`; its number."""
        rows = [{"key": k, "value": v} for k, v in tags.items()]
        body = {"name": name, "source": source, "run_id": run_id, "tags": rows}
        return str(self._call("POST", "/model-versions/create", body)["model_version"]["version"])

    def finish(self, run_id: str, status: str, end_ms: int) -> None:
        """End the run. `status`: FINISHED, FAILED or KILLED."""
        self._call("POST", "/runs/update", {"run_id": run_id, "status": status, "end_time": end_ms})

    def _log(self, run_id: str, **what: Any) -> None:
        self._call("POST", "/runs/log-batch", {"run_id": run_id, **what})

    def _call(self, method: str, path: str, body: dict[str, Any], *, absent_ok: bool = False) -> Any:
        asked = {"params": body} if method == "GET" else {"json": body}
        answer = self._answer(method, f"/mlflow{path}", asked, absent_ok=absent_ok)
        return None if answer is None else answer.json()

    def _answer(
        self, method: str, path: str, asked: dict[str, Any], *, absent_ok: bool = False
    ) -> httpx.Response | None:
        try:
            answer = self._http.request(method, path, **asked)
        except httpx.TransportError as error:
            raise TrackerDown(f"MLflow does not answer ({type(error).__name__}: {error}).") from None
        if absent_ok and answer.status_code == 404:
            return None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise TrackerDown(f"MLflow answered {answer.status_code} to {path}.")
        if answer.is_error:
            raise TrackerRefused(f"MLflow answered {answer.status_code} to {path}: {answer.text[:500]}")
        return answer
