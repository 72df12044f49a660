"""One process, no Ray: the same session for a single member, for tests, notebooks and first tries."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ringleader.checkpoint.manifest import SavedPart
from ringleader.comm.chrome import TraceFile
from ringleader.comm.timeline import TimelineStretch, Unsettled
from ringleader.comm.transports import Transport
from ringleader.elastic import NOWHERE, ParkReport, Plan
from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.job import JOB_ID
from ringleader.spec.program.entrypoint import missing_folders, python_path
from ringleader.train.ports import Seat
from ringleader.train.rows.dataset_copies import near
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.run import TrainingFunction, WorkerResult, run
from ringleader.train.session import Session
from ringleader.train.time_split import TimeSplit
from ringleader.wire.artifacts import SavedArtifact

LEDGER = "ledger.parquet"


class SingleMember:
    """A coordinator with one member."""

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def next_seat(self, parked: ParkReport) -> Seat:
        plan = Plan(
            attempt=1,
            generation=parked.generation + 1,
            members=("w0",),
            servers=0,
            shards=self._shards,
            # No other member can be ahead.
            start_transaction=parked.applied,
            heals=(),
            recorded_step=0,
            meeting=NOWHERE,
            cause="start",
        )
        return Seat(plan, 0, None)

    def joiners(self) -> list[Transport]:
        return []

    def plan_pending(self) -> bool:
        return False

    def interrupted(self) -> bool:
        return False


@dataclass(slots=True)
class RecordedOutput:
    """A record sink in memory: {step: values} and {step: (shards, rows)} of settled steps, their artifacts, events and
    timelines."""

    values: dict[int, dict[str, float]] = field(default_factory=dict)
    rows: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    stretches: list[TimelineStretch] = field(default_factory=list)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    artifacts: dict[str, SavedArtifact] = field(default_factory=dict)
    _unsettled: Unsettled = field(default_factory=Unsettled)

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        self.values[step] = values

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        self.rows[step] = (shards, rows)

    def trace(self, stretch: TimelineStretch) -> None:
        self._unsettled.add(stretch)

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        self.events.append((kind, data))

    def artifact(self, artifact: SavedArtifact) -> None:
        self.artifacts.setdefault(artifact.file, artifact)

    def saved(self, saved: SavedPart) -> None:
        pass

    def settled(self, step: int) -> None:
        self.stretches += self._unsettled.settled(step)

    def replayed(self) -> None:
        pass

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        pass

    def leave_trace(self, spec: JobSpec, folder: Path) -> None:
        """Write trace.json of the settled steps, where the job asks for it."""
        if not spec.debug.trace:
            return
        with TemporaryDirectory() as spool:
            file = TraceFile(Path(spool))
            for stretch in self.stretches:
                file.add("w0", stretch)
            file.finish(folder)

    def leave_artifacts(self, folder: Path) -> None:
        """Write the artifacts of settled steps, each as a file."""
        for name, artifact in self.artifacts.items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(artifact.content)

    def leave_ledger(self, spec: JobSpec, folder: Path) -> None:
        """Write ledger.parquet (step, shard, row) of the settled steps, where the job asks for it."""
        if not spec.debug.ledger:
            return
        from pyarrow import parquet, table  # only here: it takes its time

        settled = sorted(self.rows.items())
        columns = {
            # Without a step numpy would make it float64.
            "step": np.repeat([step for step, _ in settled], [len(rows) for _, (_, rows) in settled]).astype(
                np.int64
            ),
            # An empty first part: numpy does not concatenate nothing.
            "shard": np.concatenate([np.zeros(0, np.int32), *(shards for _, (shards, _) in settled)]),
            "row": np.concatenate([np.zeros(0, np.int64), *(rows for _, (_, rows) in settled)]),
        }
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table(columns), folder / LEDGER)

    def between(self, call: int) -> None:
        pass

    def within(self, *, told: bool = True) -> None:
        pass

    def timed(self, split: TimeSplit) -> None:
        pass

    def recorded_step(self) -> int:
        return max(self.values, default=-1) + 1

    def handed_over(self, timeout_s: float) -> bool:
        return True


@contextmanager
def local_session(spec: JobSpec | dict[str, Any], artifacts: Path | None = None) -> Iterator[Session]:
    """A session of one member: `with ringleader.local_session(spec) as session: train(session)`.

    The loop computes every logical shard itself, so a reproducible job ends with the bits of any cluster. While the
    session lasts the job's `env` is the environment, and the folders of its PYTHONPATH, relative to the current one,
    are imported from.

    Args:
        artifacts: where `debug` leaves trace.json and ledger.parquet, and `session.save` its files; the current folder
            where it is left out. A function of Ray Train leaves its checkpoints there, and none where it is left out.

    Raises:
        SpecInvalid: the job file is wrong, or asks for checkpoints, packages or MLflow's registry, or begins with a
            job's weights.
    """
    checked = spec if isinstance(spec, JobSpec) else JobSpec.parse(spec)
    _refuse_checkpoints(checked)
    _refuse_services(checked)
    _refuse_jobs(checked)
    # Before the program makes its models: every worker of a cluster draws the same first weights from here.
    seed_all(checked.seed, "init")
    sink = RecordedOutput()
    with copies(checked) as folder, _environment(checked.env):
        session = Session(
            alone(checked),
            SingleMember(checked.shards),
            sink,
            near=near(checked, folder),
            artifacts=artifacts,
        )
        for message, hint in missing_folders(checked.env, Path.cwd()):
            session._member.warnings.add("PYTHONPATH", message, hint)
        try:
            yield session
            session._member.reporter.settle()  # nobody is left who could take the last step back
        finally:
            session._close()
            sink.leave_trace(checked, artifacts or Path())
            sink.leave_ledger(checked, artifacts or Path())
            sink.leave_artifacts(artifacts or Path())


@contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    """Set these variables, and put the folders of PYTHONPATH among them on sys.path, until the end."""
    before = {name: os.environ.get(name) for name in env}
    added = [str(path) for path in python_path(env, Path.cwd())]
    os.environ.update(env)
    # In front of all others, as PYTHONPATH is for a new interpreter.
    sys.path[:0] = added
    try:
        yield
    finally:
        for path in added:
            with suppress(ValueError):  # the program may have removed it
                sys.path.remove(path)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def copies(spec: JobSpec) -> Iterator[Path | None]:
    """A folder for copies of data sets; None where the job does not ask for them."""
    if spec.data.distribution == "sharded":
        yield None
        return
    with TemporaryDirectory(prefix="ringleader-data-") as folder:
        yield Path(folder) / "copies" / "job" / "node"


def _refuse_checkpoints(spec: JobSpec) -> None:
    """Refuse checkpoints that the job file asks for; keys that it leaves at their default are ignored."""
    asked, keys = spec.checkpoint, ("every_steps", "every_s")
    wanted = {key: getattr(asked, key) for key in keys if getattr(asked, key) is not None}
    named = [key for key in wanted if "uri" in asked.model_fields_set or key in asked.model_fields_set]
    if not named:
        return
    key, every = named[0], wanted[named[0]]
    allowed = "leave checkpoint out, or every_steps: null"
    message = (
        f"a local session writes no checkpoints ({key} is {every}): it has no later attempt to start from one"
    )
    finding = {"pointer": f"/checkpoint/{key}", "value": every, "allowed": allowed}
    raise SpecInvalid([finding | {"message": f"{message}; allowed: {allowed}"}])


def _refuse_services(spec: JobSpec) -> None:
    """Refuse what only a stack does: it installs packages, and registers models in MLflow."""
    asked = {
        "requirements": (
            spec.requirements,
            "installs no packages",
            "leave requirements out, and install them in this environment",
        ),
        "register": (spec.register, "registers no model", "leave register out, or submit the job"),
    }
    found = [
        {
            "pointer": f"/{key}",
            "value": value,
            "allowed": allowed,
            "message": f"a local session {why}; allowed: {allowed}",
        }
        for key, (value, why, allowed) in asked.items()
        if value is not None
    ]
    if found:
        raise SpecInvalid(found)


def _refuse_jobs(spec: JobSpec) -> None:
    """Refuse a job as `init_from`: only a control plane knows where its weights are."""
    if spec.init_from is None or not JOB_ID.fullmatch(spec.init_from):
        return
    allowed = "the path or URI of a checkpoint, or of the file that `ringleader export` writes for that job"
    finding = {"pointer": "/init_from", "value": spec.init_from, "allowed": allowed}
    raise SpecInvalid([finding | {"message": f"a local session cannot look up jobs; allowed: {allowed}"}])


def run_local(
    spec: JobSpec | dict[str, Any], function: TrainingFunction, artifacts: Path
) -> tuple[WorkerResult, RecordedOutput]:
    """Run a training function to its end in this process; returns the result and what it reported."""
    checked = spec if isinstance(spec, JobSpec) else JobSpec.parse(spec)
    _refuse_services(checked)
    sink = RecordedOutput()
    with copies(checked) as folder_of_copies:
        finished = run(
            spec=alone(checked),
            function=function,
            coordinator=SingleMember(checked.shards),
            sink=sink,
            server=False,
            artifacts=artifacts,
            copies=folder_of_copies,
        )
    sink.leave_trace(checked, artifacts)
    sink.leave_artifacts(artifacts)
    return finished, sink


def alone(spec: JobSpec) -> JobSpec:
    """The job file for one process."""
    return spec.model_copy(update={"sync": spec.sync.without_servers()})
