"""A script for torchrun, after PyTorch's guide to FSDP2 and distributed checkpoints: a model split over all ranks,
saved by all into one folder and loaded by any world. Nothing of Ringleader's but one variable."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, GATE_AT = 8, 4


def main(gate: str) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 6))
    mesh = init_device_mesh("cpu", (world,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    saved = sorted(Path(os.environ["RINGLEADER_CHECKPOINT_DIR"]).glob("step-*/.metadata"))
    step = 0
    if saved:
        weights, moments = get_state_dict(net, optimizer)
        state = {"net": weights, "optimizer": moments, "step": 0}
        dcp.load(state, checkpoint_id=saved[-1].parent)
        set_state_dict(net, optimizer, model_state_dict=state["net"], optim_state_dict=state["optimizer"])
        step = state["step"]
    print(f"rank {rank} of {world} from step {step}", flush=True)
    while step < STEPS:
        if step == GATE_AT:
            print(f"rank {rank} is at the gate", flush=True)
            while not Path(gate).exists():
                time.sleep(0.02)
        optimizer.zero_grad()
        net(torch.ones(2, 6) * step).square().mean().backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            weights, moments = get_state_dict(net, optimizer)
            folder = Path(os.environ["RINGLEADER_CHECKPOINT_DIR"]) / f"step-{step:03}"
            dcp.save({"net": weights, "optimizer": moments, "step": step}, checkpoint_id=folder)
    print(f"rank {rank} is done", flush=True)
    dist.destroy_process_group()


main(sys.argv[1])
