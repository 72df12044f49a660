"""MLflow's registry of models: the final weights of a job become one version of the model that its job file names.

Exactly once: a job's version is looked for by its run before one is made, and the job's end is noted behind it. A model
belongs to the project whose job made it, so that no other project's job adds versions that its readers would take.
"""

from collections.abc import Callable
from pathlib import Path

import yaml

from ringleader.wire.states import State
from ringleader_api.log import Log
from ringleader_api.services.records.artifacts import WEIGHTS, weights_file
from ringleader_api.store.tables import Job
from ringleader_api.tracking.mlflow import JOB_TAG, Mlflow

log = Log("ringleader.tracking")
TAG = "ringleader.registered"
"""The tag of a run that says which version was made of it, or why none."""
PROJECT_TAG = "ringleader.project"
FOLDER = "model"
"""The folder of a version below the artifacts of its run."""


class Registry:
    """Registers final weights. `home`: where the jobs' artifacts are; None: they are not copied."""

    def __init__(self, mlflow: Mlflow, home: Path | None) -> None:
        self._mlflow = mlflow
        self._home = home

    def register(self, job: Job, run_id: str, still_mine: Callable[[], None]) -> dict[str, str]:
        """Make the version of a job that has ended, if it asks for one and there is none yet.

        Args:
            still_mine: raises where another process has taken over meanwhile: uploads take their time.

        Returns:
            The tag of the run that says what came of it; none where nothing was asked for.

        Raises:
            TrackerDown: try again; what was done is found then.
        """
        name = job.spec.get("register")
        if name is None or job.state is not State.SUCCEEDED:
            return {}
        version, why = self._version(name, job, run_id, still_mine)
        if version is None:
            log.warning("tracking.not_registered", job=job.id, model=name, why=why)
        return {TAG: f"{name}/{version}" if version is not None else f"no: {why}"}

    def _version(
        self, name: str, job: Job, run_id: str, still_mine: Callable[[], None]
    ) -> tuple[str | None, str]:
        """The number of the version, or why there is none."""
        if (there := self._mlflow.model_version(name, run_id)) is not None:
            return there, ""
        weights = weights_file(self._home, job.id) if self._home is not None else None
        if weights is None:
            return None, "the job left no weights"
        uri, folder = self._mlflow.artifact_uri(run_id), self._mlflow.artifact_folder(run_id)
        if folder is None:
            return None, f"MLflow does not serve the artifacts at {uri}"
        owner = self._mlflow.model_tags(name, {PROJECT_TAG: job.project}).get(PROJECT_TAG)
        if owner != job.project:
            return None, f"the model {name} belongs to {f'project {owner}' if owner else 'no project'}"
        # The same again replaces itself.
        self._mlflow.put_artifact(f"{folder}/{FOLDER}/MLmodel", _description(job, run_id).encode())
        # Not sent again after a crash behind it: the file may have gigabytes, and is never changed.
        if self._mlflow.artifact_sizes(run_id, FOLDER).get(WEIGHTS) != weights.stat().st_size:
            self._mlflow.put_file(f"{folder}/{FOLDER}/{WEIGHTS}", weights)
        # As late as can be: a version that was made cannot be made undone.
        still_mine()
        tags = {JOB_TAG: job.id, PROJECT_TAG: job.project}
        if job.result:
            tags["ringleader.weights_sha256"] = job.result["weights_sha256"]
        return self._mlflow.create_version(name, f"{uri}/{FOLDER}", run_id, tags), ""


def _description(job: Job, run_id: str) -> str:
    """The description of a model, as MLflow reads it."""
    return yaml.safe_dump(
        {
            "artifact_path": FOLDER,
            "run_id": run_id,
            "utc_time_created": f"{job.finished_at or job.created_at:%Y-%m-%d %H:%M:%S.%f}",
            # A flavour that MLflow does not know: these are weights alone, which none of its own loads.
            "flavors": {"ringleader": {"weights": WEIGHTS, "entrypoint": job.spec.get("entrypoint")}},
        },
        sort_keys=False,
    )
