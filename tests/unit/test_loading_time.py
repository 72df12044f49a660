"""The time in which a worker waits for its batch is told by step, and apart from what it computes."""

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from leasing import ASYNC, BATCH, SSP, Nets, job, name_of
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ringleader import Session
from ringleader.train.local import run_local

ROWS = 64
ROW_S, STEP_S = 0.002, 0.01
MODES: list[dict[str, Any]] = [
    {"intra_node": "ring", "inter_node": "ring"},
    {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2},
    {"servers": 1},
    ASYNC,
    SSP,
]


def spend(seconds: float) -> None:
    until = perf_counter() + seconds
    while perf_counter() < until:
        pass


class Slow(TensorDataset):
    """Rows each of which takes its time to be read."""

    def __init__(self) -> None:
        super().__init__(torch.arange(float(ROWS)).reshape(ROWS, 1))

    def __getitem__(self, row: Any) -> tuple[Tensor, ...]:
        spend(ROW_S)
        return super().__getitem__(row)


class Trained(Nets):
    """Loads for so long, and computes for so long."""

    def __call__(self, session: Session) -> None:
        net = session.model(nn.Linear(1, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.0))
        for (x,) in session.batches(Slow()):
            spend(STEP_S)
            session.step(net(x).mean())


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("mode", MODES, ids=name_of)
def test_what_batches_are_waited_for_is_told_and_nothing_that_is_computed(
    mode: dict[str, Any], shards: int, tmp_path: Path
) -> None:
    """With one slice a step each batch but the first is loaded while the sums of the step before are on their way."""
    batch = {"global_size": BATCH, "logical_shards": shards}
    spec = job(mode, workers={"min": 1, "max": 1}, batch=batch)
    _, told = run_local(spec, Trained(), tmp_path)
    taken = [BATCH / values["samples_per_s"] for values in told.values.values()]
    loading = [values["loading_fraction"] for values in told.values.values()]
    assert len(taken) == ROWS // BATCH
    loaded_s = sum(share * seconds for share, seconds in zip(loading, taken, strict=True))
    # Both have a least duration, whatever else this machine does; a clock is read beside another one.
    assert 0.999 * ROWS * ROW_S <= loaded_s <= sum(taken) - 0.999 * len(taken) * STEP_S


@pytest.mark.parametrize("mode", [ASYNC, SSP], ids=name_of)
def test_who_leases_items_tells_of_waits_for_batches_and_for_servers_apart(
    mode: dict[str, Any], tmp_path: Path
) -> None:
    play = ThreadedCast(job(mode), Trained(), artifacts=tmp_path).play()
    assert play.values
    for _, values in play.values:
        assert values["loading_fraction"] > 0
        assert values["loading_fraction"] + values["comm_exposed_fraction"] <= 1.0 + 1e-6
