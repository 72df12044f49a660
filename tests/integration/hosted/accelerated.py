"""A script for `accelerate launch` or torchrun, after Accelerate's example of checkpoints: `save_state`, `load_state`,
`skip_first_batches`. Nothing of Ringleader's but one variable."""

import os
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, GATE_AT = 2, 4


def main(gate: str) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(3)
    points = torch.randn(48, 4)
    loader = DataLoader(TensorDataset(points, points.sum(1)), batch_size=4, shuffle=True)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    folder = Path(os.environ["RINGLEADER_CHECKPOINT_DIR"])
    saved = sorted(folder.glob("step-*/whole"))
    step = 0
    if saved:
        accelerator.load_state(str(saved[-1].parent))
        step = int(saved[-1].parent.name.partition("-")[2])
    rank = accelerator.process_index
    print(f"rank {rank} of {accelerator.num_processes} from step {step}", flush=True)
    per_epoch = len(loader)
    for epoch in range(step // per_epoch, EPOCHS):
        begun = step - epoch * per_epoch
        for x, y in accelerator.skip_first_batches(loader, begun) if begun else loader:
            if step == GATE_AT:
                print(f"rank {rank} is at the gate", flush=True)
                while not Path(gate).exists():
                    time.sleep(0.02)
            with accelerator.accumulate(net):
                loss = (net(x).squeeze(1) - y).square().mean()
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            accelerator.gather_for_metrics(loss.detach())
            step += 1
            if step % 2 == 0:
                place = folder / f"step-{step:03}"
                accelerator.save_state(str(place))
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    (place / "whole").touch()
    print(f"rank {rank} is done", flush=True)
    accelerator.end_training()


main(sys.argv[1])
