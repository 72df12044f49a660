"""What came of a scripted cast's play."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringleader.checkpoint.committer import CheckpointMade
from ringleader.comm.timeline import TimelineStretch
from ringleader.elastic import instructions as do
from ringleader.elastic.plan import Plan
from ringleader.train.run import WorkerResult
from ringleader.wire.artifacts import SavedArtifact


@dataclass
class Play:
    """What came of it. `values`, `rows` and `artifacts` are what rank 0 let out, in the order it did."""

    outcome: str = ""
    reason: str = ""
    message: str = ""
    finished: dict[str, WorkerResult] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    reports: list[do.Report] = field(default_factory=list)
    values: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    rows: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)
    artifacts: list[SavedArtifact] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    checkpoints: list[CheckpointMade] = field(default_factory=list)
    stretches: list[tuple[str, TimelineStretch]] = field(default_factory=list)
    pairs: list[do.Follow] = field(default_factory=list)
    in_sync: list[str] = field(default_factory=list)
    briefed: list[str] = field(default_factory=list)

    def tries(self, worker: str) -> int:
        """How often it began to follow somebody, but for the times when it was told of lines to run first."""
        return len([pair for pair in self.pairs if pair.worker == worker]) - self.briefed.count(worker)

    @property
    def digest(self) -> str:
        digests = {f.digest for f in self.finished.values()}
        assert len(digests) == 1, digests
        return digests.pop()

    @property
    def worlds(self) -> list[int]:
        return [plan.world for plan in self.plans]

    def reported(self, kind: str) -> list[dict[str, Any]]:
        return [report.data for report in self.reports if report.type == kind]

    def settled_rows(self) -> list[tuple[int, int, int]]:
        """(step, shard, row) of every settled row; a step that is repeated counts again."""
        return [
            (step, int(shard), int(row))
            for step, shards, rows in self.rows
            for shard, row in zip(shards, rows, strict=True)
        ]
