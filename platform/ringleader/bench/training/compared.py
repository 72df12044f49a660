"""The cost of comparing members: a fingerprint of the whole state once a loop, as a share of its steps."""

import time
from collections.abc import Callable

import torch

from ringleader.bench.line import Figure, Target
from ringleader.bench.training.workloads import WORKLOADS
from ringleader.train.rows.order.batch_sizes import steps_in_epoch
from ringleader.train.state.fingerprints import prints
from ringleader.train.state.training_state import TrainingState

NAME = "compared"
WORLD = 2


def measure(rounds: int) -> Figure:
    """One worker's own work by turns: a step on its rows, without the exchange that a group's step has besides, and
    the fingerprint that it takes once a loop."""
    workload = WORKLOADS["mlp"]
    data, held = workload.rows(), TrainingState()
    net = workload.net()
    held.models.append(net)
    optimizer = workload.optimizer(net.parameters())
    held.add_optimizer(optimizer, None)
    rows = workload.global_batch // WORLD
    steps = steps_in_epoch(len(data), workload.global_batch)

    def step() -> None:
        optimizer.zero_grad()
        workload.loss(net(data.x[:rows]), data.y[:rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def compare() -> None:
        prints(held, {})

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # The first update allocates the momenta, and the first fingerprint its memory.
        for warm in (step, compare, step):
            warm()
        shares = [_took_s(compare) / (steps * _took_s(step)) for _ in range(rounds)]
    finally:
        torch.set_num_threads(threads)
    return Figure(
        case=NAME,
        unit="of a step",
        better="lower",
        ours=shares,
        target=Target("ringleader", "<=", 0.005),
        settings=f"{NAME}: MLP 1024-3072-3072-3072-1024 and momentum, 200 MB, compared once in a loop of {steps} "
        f"steps; a step is one thread's forward, backward and update of {rows} rows, without an exchange",
    )


def _took_s(act: Callable[[], None]) -> float:
    since = time.perf_counter()
    act()
    return time.perf_counter() - since
