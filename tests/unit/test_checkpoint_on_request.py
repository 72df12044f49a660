"""A program asks for a checkpoint, and is told where there are none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from test_leaving import RING, ROUNDS, SERVERS, job, made, rows
from test_steps import by_batches
from threaded_cast import ThreadedCast
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)


@pytest.mark.parametrize("sync", [RING, SERVERS, ROUNDS], ids=["ring", "servers", "local_sgd"])
def test_a_checkpoint_is_made_behind_the_step_that_the_program_asks_for(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    def train(session: Session) -> None:
        net, data = made(session), rows()
        for x, y in session.batches(data):
            if session.global_step == 2:
                assert session.checkpoint()
            session.step(F.cross_entropy(net(x), y))

    spec = job(sync, checkpoint={"every_steps": 100})
    play = ThreadedCast(spec, train, artifacts=tmp_path, checkpoints=str(tmp_path / "saved")).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    at = 4 if sync is ROUNDS else 3
    assert [each.manifest.position.step for each in play.checkpoints if not each.manifest.position.final] == [
        at
    ]


def test_a_job_without_checkpoints_says_so(tmp_path: Path) -> None:
    told = []

    def train(session: Session) -> None:
        told.append(session.checkpoint())
        by_batches(session)

    _, recorded = run_local(job(RING), train, tmp_path)
    assert told == [False]
    [warning] = [data for kind, data in recorded.events if kind == "warning"]
    assert "this job has no checkpoints" in warning["message"]
