"""The calls of `ray.train`, answered by a session."""

import shutil
import tarfile
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from ringleader.adapters.library import needed
from ringleader.adapters.ray_train.data import DatasetShard
from ringleader.adapters.ray_train.torch_loops import TorchLoops
from ringleader.adapters.session_loop import record, refuse
from ringleader.train import Session
from ringleader.train.body.turns import STEP_METRICS

with needed("ray", "engine"):
    from ray.train import CheckpointUploadMode
    from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils
    from ray.train.v2.api.context import LocalTrainContext

OF_STEPS = STEP_METRICS | {"loss", "lr"}
"""Metrics that each step has anyway: reported ones of these names get `reported/` in front."""
KEPT = "ray-checkpoint-{:012d}.tar"
IN_A_LOOP = (
    "A turn has one slice of the batch, and other workers are not at theirs at the same time. The loss of every step "
    "is recorded by itself: report the rest after the loop."
)


class SessionContext(LocalTrainContext):  # type: ignore[misc]
    """A world of one worker."""

    def get_storage(self) -> NoReturn:
        refuse("get_context().get_storage()", "Report checkpoints: ray.train.report(metrics, checkpoint=…).")


class RayTrainCalls(LocalTrainFnUtils):  # type: ignore[misc]
    """The calls of a function on a session."""

    def __init__(self, session: Session, loops: TorchLoops) -> None:
        super().__init__(experiment_name=session._spec.name)
        self._session = session
        self._loops = loops
        self._context = SessionContext(session._spec.name)

    def report(  # noqa: PLR0917 (Ray's own)
        self,
        metrics: dict[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: Any = CheckpointUploadMode.SYNC,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Any = None,
        validation: Any = False,
    ) -> None:
        """Record numbers at the newest step, and keep a checkpoint among the job's artifacts."""
        if self._loops.turn.looping:
            refuse("ray.train.report in a training loop", IN_A_LOOP)
        if validation or checkpoint_upload_fn is not None:
            refuse(
                "report(validation=…) and report(checkpoint_upload_fn=…)",
                "Evaluate between loops, and leave checkpoints to the job.",
            )
        self._record(metrics)
        # With NO_UPLOAD it lies already where the program wants it.
        if checkpoint is not None and checkpoint_upload_mode != CheckpointUploadMode.NO_UPLOAD:
            self._keep(checkpoint, checkpoint_dir_name or "checkpoint")
            if delete_local_checkpoint_after_upload:
                shutil.rmtree(checkpoint.path, ignore_errors=True)

    def get_checkpoint(self) -> None:
        """None: a later attempt of the job goes on from its own checkpoint, and the function begins as ever."""

    def get_dataset_shard(self, dataset_info: Any) -> DatasetShard:
        """The files that the job file names so. Each call opens them, and each worker reads the rows of its slices."""
        name, named = dataset_info.dataset_name, self._session._spec.data.sets
        if name is None and len(named) == 1:
            name = next(iter(named))
        if name not in named:
            refuse(
                f"ray.train.get_dataset_shard({name!r}) of a data set that the job file does not name",
                f"Name its files in the job file: data: {{sets: {{{name or 'train'}: /path/or/uri}}}} (Parquet, Arrow, "
                f"JSONL, tars, MDS); what Ray Data computes, write to Parquet first: dataset.write_parquet(uri).",
            )
        return DatasetShard(self._loops, name, named[name])

    def broadcast_from_rank_zero(self, data: Any) -> Any:
        """The value itself: between loops all workers have the same."""
        if self._loops.turn.looping:
            refuse("ray.train.collective.broadcast_from_rank_zero in a training loop", IN_A_LOOP)
        return data

    def _record(self, metrics: dict[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        record(self._session, {_free(name): value for name, value in numbers.items()})
        if left_out := [name for name in metrics if name not in numbers]:
            self._warn(
                f"ray.train.report was given {', '.join(left_out)}, which are no numbers and are not recorded.",
                "Report numbers; print texts.",
            )

    def _keep(self, checkpoint: Any, name: str) -> None:
        session = self._session
        if session._artifacts is None:
            self._warn(
                "ray.train.report was given a checkpoint, and this session has no folder to keep it in.",
                "Give it one: local_session(spec, artifacts=folder). A job has its artifacts.",
            )
        # One worker writes it, and none that runs these lines again.
        elif session.is_main and not session._member.sections.catches_up:
            step, most = session.global_step, session._spec.checkpoint.keep
            with checkpoint.as_directory() as folder:
                _pack(Path(folder), session._artifacts / KEPT.format(step), name)
            for older in sorted(session._artifacts.glob(KEPT.replace("{:012d}", "*")))[:-most]:
                older.unlink(missing_ok=True)

    def _warn(self, message: str, hint: str) -> None:
        self._session._member.warnings.add("ray.train.report", message, hint)


def _pack(folder: Path, target: Path, name: str) -> None:
    """Make a file of a folder; it is complete before it has its name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with tarfile.open(partial, "w") as file:
        file.add(folder, arcname=name)
    partial.replace(target)


def _free(name: str) -> str:
    return f"reported/{name}" if name in OF_STEPS else name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
