"""Training loops of Accelerate, Lightning and Fabric as their own users write them, without a session: what a library's
own lines add to a step of plain torch. An adapter, which runs these lines too, cannot add less.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from ringleader.bench.training.workloads import InMemoryRows, sgd

Tick = Callable[[], None]
"""Called behind each step."""
Loss = Callable[[nn.Module, Any], Tensor]
OwnLoop = Callable[[nn.Module, InMemoryRows, Loss, int, Tick], None]
"""Trains a network on rows by a loss, in batches of so many rows."""
CLIP_NORM = 1.0


def in_torch(net: nn.Module, rows: InMemoryRows, loss_of: Loss, batch_rows: int, tick: Tick) -> None:
    optimizer = sgd(net.parameters())
    for batch in DataLoader(rows, batch_rows, shuffle=True):
        optimizer.zero_grad()
        loss_of(net, batch).backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(net.parameters(), CLIP_NORM)
        optimizer.step()
        tick()


def in_accelerate(net: nn.Module, rows: InMemoryRows, loss_of: Loss, batch_rows: int, tick: Tick) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(rows, batch_rows, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, sgd(net.parameters()), loader)
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(loss_of(net, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()
        tick()


def in_lightning(net: nn.Module, rows: InMemoryRows, loss_of: Loss, batch_rows: int, tick: Tick) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return sgd(self.net.parameters())

        def on_train_batch_end(self, *_: Any) -> None:
            tick()

    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        gradient_clip_val=CLIP_NORM,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(rows, batch_rows, shuffle=True))


def in_fabric(net: nn.Module, rows: InMemoryRows, loss_of: Loss, batch_rows: int, tick: Tick) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net, optimizer = fabric.setup(net, sgd(net.parameters()))
    for batch in fabric.setup_dataloaders(DataLoader(rows, batch_rows, shuffle=True)):
        fabric.backward(loss_of(net, batch))
        fabric.clip_gradients(net, optimizer, max_norm=CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        tick()
