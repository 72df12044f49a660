"""A script for torchrun, after Lightning's guide to clusters: `Trainer(strategy="ddp")` on one process of each node,
saved by its own `ModelCheckpoint`. Nothing of Ringleader's but one variable."""

import os
import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

GATE_AT = 4


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        loss = (self.net(batch[0]).squeeze(1) - batch[1]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Gate(Callback):
    def __init__(self, gate):
        self.gate = gate

    def on_train_start(self, trainer, _):
        rank, world = trainer.global_rank, trainer.world_size
        print(f"rank {rank} of {world} from step {trainer.global_step}", flush=True)

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == GATE_AT:
            print(f"rank {trainer.global_rank} is at the gate", flush=True)
            while not Path(self.gate).exists():
                time.sleep(0.02)


points = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
saves = ModelCheckpoint(
    dirpath=os.environ["RINGLEADER_CHECKPOINT_DIR"], every_n_train_steps=2, save_last=True, save_top_k=-1
)
trainer = Trainer(
    accelerator="cpu",
    devices=1,
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_steps=8,
    callbacks=[saves, Gate(sys.argv[1])],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(points, points.sum(1)), batch_size=4), ckpt_path="last")
print(f"rank {trainer.global_rank} is done", flush=True)
