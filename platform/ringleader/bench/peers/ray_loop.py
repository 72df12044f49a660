"""The training loop that Ray Train's workers run, in a module they can import."""

import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import prepare_model

from ringleader.bench.elasticity.commits import CommitLog
from ringleader.bench.training.workloads import WORKLOADS

CHECKPOINT_EVERY = 50


def loop(config: dict[str, Any]) -> None:
    """One worker's training loop, after Ray Train's own guide."""
    # As many as our workers have, so that a step is the same work on all systems.
    torch.set_num_threads(1)
    context = ray.train.get_context()
    workload = WORKLOADS[config["workload"]]
    rows = workload.rows()
    model = prepare_model(workload.net())
    optimizer = workload.optimizer(model.parameters())
    start = _restore(model, optimizer)
    log = CommitLog(Path(config["commits"]))
    group = _group_number()
    share = workload.global_batch // context.get_world_size()
    draw = torch.Generator().manual_seed(context.get_world_rank())
    for step in range(start, config["steps"]):
        picked = torch.randint(len(rows), (share,), generator=draw)
        time.sleep(config["pause_s"])
        optimizer.zero_grad()
        workload.loss(model(rows.x[picked]), rows.y[picked]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        log.committed(step=step, membership=group)
        if (step + 1) % CHECKPOINT_EVERY == 0:
            _checkpoint(model, optimizer, step + 1)


def _group_number() -> int:
    """A number that all members of this group share and no other group has."""
    number = torch.tensor(time.monotonic_ns() // 1000)
    dist.broadcast(number, 0)
    return int(number.item())


def _restore(model: Any, optimizer: Any) -> int:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / "state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _checkpoint(model: Any, optimizer: Any, step: int) -> None:
    if ray.train.get_context().get_world_rank() != 0:
        # `report` waits for all workers, so those without a checkpoint have to call it, too.
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, Path(folder) / "state.pt")
        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))
