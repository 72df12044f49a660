"""What one worker alone has found to make other bits is in the result, also where this worker is lost."""

from pathlib import Path

import torch
from cast import Cast
from faults import ANY, FaultPlan
from play import Play
from programs import BATCH, EPOCHS, ROWS, rows, sgd
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.wire.findings import ELSEWHERE

SHARDS, NEVER = 3, 1000
RARE = SHARDS - 1


class Placed(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Rows with the number of the slice that they are in."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        x, y = rows()[row]
        return x, y, torch.tensor(row % BATCH // (BATCH // SHARDS))


class RareMean(nn.Module):
    """A network with a running mean of the rows of one slice, which no step commits."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.mean = torch.zeros(6)

    def forward(self, x: Tensor, slices: Tensor) -> Tensor:
        if (slices == RARE).any():
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            x = x - self.mean
        return self.head(x)


def with_rare_rows(session: Session) -> None:
    net = session.model(RareMean())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y, slices in session.batches(Placed(), shuffle=False):
            session.step(F.cross_entropy(net(x, slices), y))


def play(faults: FaultPlan, place: Path) -> Play:
    spec = JobSpec.parse(
        {
            "name": "elsewhere",
            "entrypoint": f"{__name__}:with_rare_rows",
            "workers": {"min": 2, "max": 3},
            "batch": {"global_size": BATCH, "logical_shards": SHARDS},
            "sync": "ring",
        }
    )
    told = Cast(spec, with_rare_rows, faults, artifacts=place).play()
    assert told.outcome == "succeeded", (told.reason, told.message)
    return told


def test_what_a_lost_worker_alone_had_found_is_in_the_result(tmp_path: Path) -> None:
    # So late that whoever has its slice from then on sees too few turns of it to find anything.
    last = EPOCHS * (ROWS // BATCH) - 1
    faults = (
        FaultPlan().kill("w2", at_step=last).hold("w3", at_step=ANY, phase="parked", for_generation=NEVER)
    )
    finished = play(faults, tmp_path).finished
    assert {worker: end.reproducible_why for worker, end in finished.items()} == {
        "w0": ELSEWHERE,
        "w1": ELSEWHERE,
    }
    assert not any(end.reproducible for end in finished.values())


def test_what_one_worker_alone_has_found_all_tell(tmp_path: Path) -> None:
    finished = play(FaultPlan(), tmp_path).finished
    [why] = {end.reproducible_why for end in finished.values()}
    assert (len(finished), "(mean)" in why) == (3, True)
