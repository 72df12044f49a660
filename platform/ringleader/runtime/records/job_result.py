"""The result of a job that succeeded, from what its lowest rank returned and where its files are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringleader.wire.views import Result


@dataclass(frozen=True, slots=True)
class ResultUris:
    """The URIs of a job's files; empty for those that it has not."""

    weights: str
    checkpoint: str
    ledger: str
    trace: str


def not_finite(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores that a result leaves out: JSON has no NaN and no infinity."""
    return {name: value for name, value in scores.items() if not math.isfinite(value)}


def result_of(finished: Mapping[str, Any], uris: ResultUris) -> Result:
    """The result, from the fields of `train.run.WorkerResult`."""
    loss, scores = finished.get("loss"), finished["scores"]
    return Result(
        steps=finished["steps"],
        samples=finished["samples"],
        loss=loss if loss is not None and math.isfinite(loss) else None,
        scores={name: value for name, value in scores.items() if math.isfinite(value)},
        generations=finished["generations"],
        reproducible=finished["reproducible"],
        reproducible_why=finished["reproducible_why"],
        weights_sha256=finished["digest"],
        weights_uri=uris.weights,
        checkpoint_uri=uris.checkpoint,
        ledger_uri=uris.ledger,
        trace_uri=uris.trace,
        wall_s=finished["wall_s"],
        compute_s=finished["compute_s"],
        exposed_communication_s=finished["exposed_s"],
        idle_s=finished["idle_s"],
        recovery_s=finished["recovery_s"],
        staleness=finished.get("staleness", []),
        skipped_updates=finished.get("skipped_updates", 0),
    )
