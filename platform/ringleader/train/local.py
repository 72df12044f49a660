"""One process, no Ray: the same session for a single member, for tests, notebooks and first tries."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ringleader.elastic import Plan
from ringleader.spec import JobSpec
from ringleader.train.run import Finished, TrainingFunction, run
from ringleader.train.seams import Parked, Seat
from ringleader.train.session import Session
from ringleader.train.streams import seed_all


class Alone:
    """A coordinator with one member."""

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def next_seat(self, parked: Parked) -> Seat:
        plan = Plan(
            attempt=1,
            generation=parked.generation + 1,
            members=("w0",),
            servers=0,
            shards=self._shards,
            start_step=parked.applied,
            heals=(),
            recorded_step=0,
            meeting="",
            cause="start",
        )
        return Seat(plan, 0, None)

    def plan_pending(self) -> bool:
        return False

    def interrupted(self) -> bool:
        return False


@dataclass(slots=True)
class Recorded:
    """An outlet that keeps what was settled: {step: values} and {step: (shards, rows)}."""

    values: dict[int, dict[str, float]] = field(default_factory=dict)
    rows: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def metrics(self, step: int, generation: int, values: dict[str, float]) -> None:
        self.values[step] = values

    def ledger(self, step: int, shards: np.ndarray, rows: np.ndarray) -> None:
        self.rows[step] = (shards, rows)

    def event(self, kind: str, generation: int, data: dict[str, Any]) -> None:
        pass

    def settled(self, step: int) -> None:
        pass

    def replayed(self) -> None:
        pass

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        pass

    def recorded_step(self) -> int:
        return max(self.values, default=-1) + 1


@contextmanager
def local_session(spec: JobSpec | dict[str, Any]) -> Iterator[Session]:
    """A session of one member: `with ringleader.local_session(spec) as session: train(session)`.

    The loop computes every logical shard itself, so a reproducible job ends with the bits of any cluster.
    """
    checked = spec if isinstance(spec, JobSpec) else JobSpec.parse(spec)
    seed_all(checked.seed, "init")
    session = Session(_alone(checked), Alone(checked.shards), Recorded())
    try:
        yield session
    finally:
        session._group.close()


def run_local(
    spec: JobSpec | dict[str, Any], function: TrainingFunction, artifacts: Path
) -> tuple[Finished, Recorded]:
    """Run a training function to its end in this process; returns the result and what it reported."""
    checked = spec if isinstance(spec, JobSpec) else JobSpec.parse(spec)
    outlet = Recorded()
    finished = run(
        spec=_alone(checked),
        function=function,
        coordinator=Alone(checked.shards),
        outlet=outlet,
        server=False,
        artifacts=artifacts,
    )
    return finished, outlet


def _alone(spec: JobSpec) -> JobSpec:
    """Servers are other processes: alone, the same sums run as a ring of one, with the same bits."""
    if spec.sync.architecture != "parameter_server":
        return spec
    sync = spec.sync.model_copy(update={"intra_node": "ring", "inter_node": "ring"})
    return spec.model_copy(update={"sync": sync})
