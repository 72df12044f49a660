"""The programs that the pages show keep their bits, as the pages say."""

from pathlib import Path

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from pages import Shown, all_shown

from ringleader.spec import JobSpec
from ringleader.train.local import run_local

SPEC = JobSpec.parse(
    {
        "name": "shown",
        "entrypoint": "shown:train",
        "workers": {"min": 2, "max": 2},
        "batch": {"global_size": 64, "logical_shards": 4},
        "checkpoint": {"every_steps": None},
        "sync": "ring",
    }
)


@pytest.mark.parametrize("program", all_shown(), ids=str)
def test_a_program_of_a_page_keeps_its_bits_when_a_worker_dies(program: Shown, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone, _ = run_local(SPEC, program, tmp_path / "alone")
    faults = FaultPlan().kill("w1", at_step=alone.steps // 2 + 1)
    play = Cast(SPEC, program, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {finished.reproducible_why for finished in play.finished.values()} == {""}
    assert play.reported("member.differed") == []
    assert play.digest == alone.digest
