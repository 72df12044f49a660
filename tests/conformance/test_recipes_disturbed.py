"""The recipes keep their bits when a worker dies, each in its own mode and at a size that takes seconds."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan

import ringleader_jobs
from ringleader.spec import JobSpec
from ringleader.train.local import run_local

JOBS = Path(ringleader_jobs.__file__).parent
TEXT = "".join(f"Speaker {n % 7}:\nline {n} of {n * n}\n\n" for n in range(160))
SMALL: dict[str, dict[str, Any]] = {
    "detector": {"rows": 96, "width": 4, "epochs": 2},
    "fine_tune": {"length": 32, "batch": 4, "epochs": 1},
    "language": {"length": 32, "width": 16, "layers": 1, "heads": 2, "epochs": 1, "evaluate_every": 2},
    "recommender": {"users": 40, "items": 20, "ratings": 400, "epochs": 2},
    "speech": {"rows": 96, "width": 8, "epochs": 2},
}
"""Params of each recipe that trains in seconds."""


def small_job(name: str, folder: Path) -> JobSpec:
    """The recipe's job file for two workers and few rows; packages are those that are installed."""
    text = folder / "text.txt"
    text.write_text(TEXT)
    spec = JobSpec.load(JOBS / f"{name}.yaml")
    shards = 4 if name == "fine_tune" else 2
    asked = spec.model_dump(mode="json") | {
        "params": {**spec.params, **SMALL[name]} | ({"text": str(text)} if "text" in spec.params else {}),
        "workers": {"min": 2, "max": 2},
        "batch": {"global_size": 16, "logical_shards": shards},
        "checkpoint": {"every_steps": None},
        "requirements": None,
    }
    return JobSpec.parse(asked)


@pytest.mark.parametrize("name", SMALL)
def test_a_recipe_keeps_its_bits_when_a_worker_dies(name: str, tmp_path: Path) -> None:
    if name == "fine_tune" and find_spec("transformers") is None:
        pytest.skip("transformers is not installed: pip install -e .[hf]")
    torch.set_num_threads(1)
    spec, train = small_job(name, tmp_path), import_module(f"ringleader_jobs.{name}").train
    alone, _ = run_local(spec, train, tmp_path / "alone")
    assert alone.steps >= 6
    # Servers have the first names.
    worker = f"w{spec.sync.server_count + 1}"
    faults = FaultPlan().kill(worker, at_step=alone.steps // 2 + 1)
    play = Cast(spec, train, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {finished.reproducible_why for finished in play.finished.values()} == {""}
    assert play.reported("member.differed") == play.reported("program.differs") == []
    assert len(play.plans) > 1
    assert play.digest == alone.digest
    for finished in play.finished.values():
        assert finished.scores == alone.scores
