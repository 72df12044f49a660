"""Steps that `data.skip` leaves out: joined, killed, paused and resumed at another world, in each mode."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from test_group_faults import EPOCHS, STEPS, TWO, register, rows
from test_group_restart import SAVED, job, rows_of
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import run_local

SKIP = [[2, 3], [6, 6], [STEPS // 2 + 1, STEPS // 2 + 2]]
LEFT_OUT = {step for first, last in SKIP for step in range(first, last + 1)}
LEASED = {"intra_node": "parameter_server", "inter_node": "parameter_server", "consistency": "ssp"}
MODES: dict[str, Any] = {"ring": "ring", "servers": TWO, "local-sgd": "local_sgd", "leased": LEASED}
WORKERS = ("w0", "w1", "w2", "w3", "w4", "w5")
NEVER = 1000


def train(session: Session) -> None:
    data = rows()
    net = register(session)
    for _ in range(EPOCHS):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))
        session.evaluate(data, lambda b: {"accuracy": (net(b[0]).argmax(dim=1) == b[1]).float()})


def spec(workers: int, **keys: Any) -> Any:
    return job(workers={"min": 1, "max": workers}, checkpoint={"every_steps": 4}, **keys)


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_all_other_steps_are_settled_once(mode: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    _, whole = run_local(spec(1, sync="ring"), train, tmp_path / "whole")
    kept = [step for step in range(1, STEPS + 1) if step not in LEFT_OUT]
    expected = sorted(int(row) for step in kept for row in whole.rows[step][1])
    keys = {"sync": MODES[mode], "data": {"skip": SKIP}}
    servers = {"servers": 2, "leased": 1}.get(mode, 0)
    workers = [f"w{servers + n}" for n in range(3)]
    cues = FaultPlan().resize(at_step=2, workers_min=1, workers_max=3).pause(at_step=7)
    for name in workers[:2]:
        cues = cues.linger(name, since_step=2, for_generation=2)
    cues = cues.kill(workers[2], at_step=4)
    for name in WORKERS:
        cues = cues.dawdle(name, from_step=7, for_generation=NEVER)
    checkpoints = str(tmp_path / SAVED)
    first = Cast(spec(2, **keys), train, cues, tmp_path / "first", checkpoints=checkpoints).play()
    assert (first.outcome, first.finished) == ("paused", {}), (first.reason, first.message)
    assert len(first.plans) > 2
    second = Cast(
        spec(1, **keys), train, FaultPlan(), tmp_path / "second", attempt=2, checkpoints=checkpoints
    ).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert Counter(rows_of(first, second)) == Counter(expected)
    assert max(step for step, _ in second.values) == len(kept)
    if mode in ("ring", "servers"):
        undisturbed, _ = run_local(spec(1, sync="ring", data={"skip": SKIP}), train, tmp_path / "alone")
        assert second.digest == undisturbed.digest
