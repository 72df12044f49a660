"""A loop that one worker's body leaves by an exception is left on every member, in modes where each goes its own pace:
servers and workers without a turn there run the lines that catch it, too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.spec import JobSpec
from ringleader.train import Session

LEASED = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
MODES: dict[str, dict[str, Any]] = {
    "bounded": LEASED | {"consistency": "ssp"},
    "stale": LEASED | {"consistency": "ssp", "staleness": 2},
    "backed up": LEASED | {"consistency": "ssp", "servers": 2, "server_backups": 1},
    "asynchronous": LEASED | {"consistency": "async", "servers": 2},
    "tokens": {"inter_node": "token_ring", "intra_node": "token_ring"},
    "tokens of node groups": {"inter_node": "token_ring", "intra_node": "ring"},
    "tokens of servers": {"inter_node": "token_ring", "intra_node": "parameter_server"},
    "pushed": {"inter_node": "parameter_server", "intra_node": "token_ring"},
}


class Enough(Exception):
    """Raised by the program itself."""


def train(session: Session) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = TensorDataset(torch.randn(480, 4, generator=draw), torch.randint(0, 2, (480,), generator=draw))
    net = session.model(nn.Linear(4, 2))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    caught: list[int] = []
    for number in range(2):
        try:
            for x, y in session.batches(rows):
                if session.global_step >= 2 * (number + 1):
                    raise Enough
                session.step(F.cross_entropy(net(x), y))
        except Enough:
            caught.append(number)
    for x, y in session.batches(rows):  # all stand at one state behind it
        session.step(F.cross_entropy(net(x), y))
    with torch.no_grad():
        net.bias.fill_(1.0 + 10.0 * len(caught))


@pytest.mark.parametrize("mode", MODES)
def test_every_member_runs_the_lines_that_catch_it(mode: str, tmp_path: Path) -> None:
    """A member that does not has another bias in the end, and another digest."""
    spec = JobSpec.parse(
        {
            "name": "left",
            "entrypoint": "left:train",
            "workers": {"min": 2, "max": 2},
            "batch": {"global_size": 12, "logical_shards": 4},
            "sync": MODES[mode],
        }
    )
    play = Cast(spec, train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest
