"""A function of Ray Train: an epoch a report, with a checkpoint that it goes on from."""

import os
import tempfile
import time
from pathlib import Path

import ray.train
import torch
from ray.train import Checkpoint
from ray.train.torch import prepare_data_loader, prepare_model
from torch.utils.data import DataLoader, TensorDataset


def train_func(config):
    context = ray.train.get_context()
    rank, begin = context.get_world_rank(), 0
    net = prepare_model(torch.nn.Linear(4, 1))
    # In a world of one Ray wraps it in nothing.
    bare = getattr(net, "module", net)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "saved.pt")
        begin = saved["epoch"]
        bare.load_state_dict(saved["net"])
    print(f"of {context.get_world_size()} from epoch {begin}")
    loader = prepare_data_loader(DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(begin, config["epochs"]):
        if epoch == config["epochs"] // 2 and config.get("gate"):
            print("at the gate")
            while not Path(config["gate"]).exists():
                time.sleep(0.02)
        if rank == 0 and epoch == config.get("fail_at"):
            raise ZeroDivisionError(f"on purpose, with {os.environ['TOLD']}")
        for (x,) in loader:
            optimizer.zero_grad()
            loss = net(x).mean()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"net": bare.state_dict(), "epoch": epoch + 1}, Path(folder) / "saved.pt")
            mine = Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"loss": float(loss)}, checkpoint=mine)
    print("done")
