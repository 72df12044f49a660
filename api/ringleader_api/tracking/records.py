"""A job's representation in MLflow: params, points, recoveries, end. Pure."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from typing import Any

from ringleader.wire.artifacts import FILE, NAME
from ringleader.wire.disclosure import without_credentials
from ringleader.wire.states import State
from ringleader_api.services.records.totals import totals
from ringleader_api.store.tables import Event, Job, Metric
from ringleader_api.tracking.mlflow import JOB_TAG, MlflowPoint

MAX_BATCH = 1000  # metrics in one log-batch call
MAX_PARAMS = 100
MAX_VALUE = 5000
MAX_NAME = 200
STATUS = {State.SUCCEEDED: "FINISHED", State.FAILED: "FAILED", State.CANCELLED: "KILLED"}
RECOVERED = "recovered"
SAVED = "artifact.saved"

_FORBIDDEN = re.compile(r"[^\w\-. :/]")


def params(job: Job) -> list[tuple[str, str]]:
    """The job file as it was submitted, one flat key each, URIs without their credentials."""
    # `env` and `alerts` may hold secrets.
    left_out = ("env", "alerts", "name", "project", "labels")
    flat = _flatten({k: v for k, v in job.submitted.items() if k not in left_out})
    found: dict[str, str] = {}
    for key, value in flat:
        found[_free(mlflow_key(key), found)] = without_credentials(value)[:MAX_VALUE]
    return list(found.items())


def tags(job: Job) -> dict[str, str]:
    labels = {f"label.{mlflow_key(k)}": str(v) for k, v in job.labels.items()}
    return {JOB_TAG: job.id, "mlflow.user": job.owner, **labels}


def end_tags(job: Job) -> dict[str, str]:
    """The tags worth finding a run by once it has ended."""
    found = {"ringleader.state": job.state.value}
    found |= {f"ringleader.{name}": str(round(value, 3)) for name, value in totals(job).model_dump().items()}
    if job.reason:
        found["ringleader.reason"] = f"{job.reason['code']}: {job.reason['message']}"[:MAX_VALUE]
    if job.result:
        found["ringleader.weights_sha256"] = job.result["weights_sha256"]
        found["ringleader.reproducible"] = str(job.result["reproducible"]).lower()
    return found


class Keys(dict[str, str]):
    """The names of a job's metrics in MLflow, by their own. Names that are cleaned alike are numbered in the order of
    their first rows: the same each time."""

    def __missing__(self, name: str) -> str:
        key = self[name] = _free(mlflow_key(name), self.values())
        return key


def points(rows: Iterable[Metric], keys: Keys) -> list[MlflowPoint]:
    return [MlflowPoint(keys[r.name], r.value, millis(r.at), r.step) for r in rows]


def recovery_points(events: Sequence[Event], after: int) -> list[MlflowPoint]:
    """The `recovered` events numbered above `after`, as metrics recovery_detect_s … at the step they happened.

    An event without a step takes that of the loss before it, so that it is the same each time it is asked for.
    """
    found: list[MlflowPoint] = []
    step = 0
    for event in events:
        step = _step(event.data.get("step"), step)
        if event.type == RECOVERED and event.seq > after:
            found += [
                MlflowPoint(f"recovery_{mlflow_key(name)}", float(value), millis(event.at), step)
                for name, value in event.data.items()
                # A bool is an int to Python.
                if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool)
            ]
    return found


def artifact_files(events: Iterable[Event]) -> list[tuple[str, str]]:
    """The name and the file of each artifact that these events tell of. What they say is the job's word: a name that
    leads elsewhere is left out."""
    told = [(event.data.get("name"), event.data.get("file")) for event in events]
    return [
        (name, file)
        for name, file in told
        if isinstance(name, str) and isinstance(file, str) and NAME.fullmatch(name) and FILE.fullmatch(file)
    ]


def _step(told: Any, before: int) -> int:
    """The step an event names, else the one before it."""
    # The data is written by a job's own process, and may hold no number, or one that MLflow cannot hold.
    whole = isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1 << 63
    return told if whole else before


def score_points(job: Job) -> list[MlflowPoint]:
    """The final scores of a succeeded job, at its last step; none for any other."""
    if not job.result or job.finished_at is None:
        return []
    # Names of their own: scores stand beside the curves, under a prefix.
    at, steps, keys = millis(job.finished_at), job.result["steps"], Keys()
    return [
        MlflowPoint(f"final_{keys[k]}", float(v), at, steps) for k, v in sorted(job.result["scores"].items())
    ]


def millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield f"{prefix}{key}", value
        elif value is not None:
            yield f"{prefix}{key}", json.dumps(value)


def mlflow_key(name: str) -> str:
    """The name as MLflow allows it: letters, digits, and _ - . : / and spaces, 250 of them, and no path that resolves
    to another: no part is empty, `.` or `..`."""
    parts = _FORBIDDEN.sub("_", name)[:MAX_NAME].split("/")
    cleaned = "/".join("_" * len(p) if p in (".", "..") else p for p in parts if p)
    # MLflow takes whatever begins with two dots for a way out of its folder.
    return "__" + cleaned[2:] if cleaned.startswith("..") else cleaned or "_"


def _free(key: str, taken: Container[str]) -> str:
    """The key, numbered if it is taken."""
    # MLflow refuses a second value of a param, and would mix two metrics of one name.
    numbered = (f"{key}_{number}" for number in count(2))
    return next(k for k in chain([key], numbered) if k not in taken)
