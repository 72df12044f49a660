"""A script for torchrun: DDP on gloo, a snapshot each few steps, and nothing of Ringleader's but one variable."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gate", default="")
    parser.add_argument("--fail-at", type=int, default=-1)
    asked = parser.parse_args()
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    snapshot = Path(os.environ["RINGLEADER_CHECKPOINT_DIR"]) / "snapshot.pt"
    net = torch.nn.Linear(4, 1)
    begin = 0
    if snapshot.exists():
        saved = torch.load(snapshot)
        net.load_state_dict(saved["net"])
        begin = saved["step"]
    print(f"rank {rank} of {dist.get_world_size()} from step {begin}", flush=True)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    for step in range(begin, asked.steps):
        if step == asked.fail_at and rank == dist.get_world_size() - 1:
            print("about to fail", file=sys.stderr)
            sys.exit(7)
        if step == asked.steps // 2:
            print(f"rank {rank} is at the gate", flush=True)
        while step == asked.steps // 2 and asked.gate and not Path(asked.gate).exists() and not stopped:
            time.sleep(0.02)
        end = torch.tensor(float(bool(stopped)))
        dist.all_reduce(end)
        if end:
            print(f"rank {rank} stops at step {step}", flush=True)
            break
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            partial = snapshot.with_suffix(".partial")
            torch.save({"net": net.state_dict(), "step": step + 1}, partial)
            partial.replace(snapshot)
    else:
        print(f"rank {rank} is done", flush=True)
    dist.destroy_process_group()


main()
