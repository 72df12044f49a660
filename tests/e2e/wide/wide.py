"""What crosses the links: two large matrices, whose gradients outweigh everything that is said about them."""

import time
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import ringleader

WIDE, NARROW = 740, 700
HELD_STEP = 8
HELD_S = 60.0


def train(session: ringleader.Session) -> None:
    """Params: `epochs`, of 8 steps with the global batch of 32; `go`, a file without which step `HELD_STEP` waits."""
    draw = torch.Generator().manual_seed(5)
    rows = TensorDataset(
        torch.randn(256, NARROW, generator=draw), torch.randint(0, 10, (256,), generator=draw)
    )
    net = session.model(
        torch.nn.Sequential(torch.nn.Linear(NARROW, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, NARROW))
    )
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
    session.total_steps(rows, epochs=session.params["epochs"])
    for _ in range(session.params["epochs"]):
        for x, y in session.batches(rows):
            if session.global_step == HELD_STEP and session.params["go"]:
                _await(Path(session.params["go"]))
            session.step(F.cross_entropy(net(x), y))


def _await(file: Path) -> None:
    give_up_at = time.monotonic() + HELD_S
    while not file.exists():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"nobody made {file}")
        time.sleep(0.01)
