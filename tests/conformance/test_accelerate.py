"""A loop written for Accelerate keeps its library's result and the session's bits, also while workers come and go."""

from pathlib import Path
from typing import Any

import pytest
import torch
from adapted import BATCH, EPOCHS, SERVERS, SPEC, SessionOrder, alone, close, differing, disturbed
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from ringleader.errors import StepMisuse
from ringleader.spec import JobSpec
from ringleader.train import Session

accelerate = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: pip install -e .[accelerate]"
)

from accelerate.test_utils.training import RegressionDataset, RegressionModel  # noqa: E402
from accelerate.utils import DataLoaderConfiguration  # noqa: E402

from ringleader.adapters.accelerate import ElasticAccelerator  # noqa: E402

ROWS, NORM = 96, 1.5
STEPS = EPOCHS * ROWS // BATCH
WHOLE = DataLoaderConfiguration(split_batches=True)


def regression() -> tuple[Any, Any, Any]:
    model = RegressionModel()
    model.first_batch = False  # it prints its types
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, StepLR(optimizer, 5, 0.9)


def loop(accelerator: Any, loader: Any) -> Any:
    """`training_check` of Accelerate's own tests, with clipping, an evaluation and what people log."""
    model, optimizer, scheduler = regression()
    loader, model, optimizer, scheduler = accelerator.prepare(loader, model, optimizer, scheduler)
    rows = accelerator.prepare(DataLoader(RegressionDataset(length=20, seed=7), batch_size=5))
    for epoch in range(EPOCHS):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(batch["x"]), batch["y"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), NORM)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        errors = []
        for batch in rows:
            with torch.no_grad():
                errors.append(accelerator.gather_for_metrics((model(batch["x"]) - batch["y"]).abs()))
        accelerator.print(f"epoch {epoch}: {torch.cat(errors).mean().item():.4f}")
        accelerator.log({"error": torch.cat(errors).mean().item()}, step=epoch)
    return accelerator.unwrap_model(model)


def adapted(session: Session) -> None:
    accelerator = ElasticAccelerator(session, clip_norm=NORM, dataloader_config=WHOLE)
    loop(accelerator, DataLoader(RegressionDataset(length=ROWS, seed=42), shuffle=True, batch_size=BATCH))


def native(session: Session) -> None:
    model, optimizer, scheduler = regression()
    model = session.model(model)
    session.optimizer(optimizer, clip_norm=NORM)
    session.scheduler(scheduler)
    rows = RegressionDataset(length=ROWS, seed=42)
    for _ in range(EPOCHS):
        model.train()
        for batch in session.batches(rows):
            session.step(F.mse_loss(model(batch["x"]), batch["y"]))


def test_the_loop_ends_as_accelerate_does_and_as_a_native_function_bit_for_bit(tmp_path: Path) -> None:
    rows = RegressionDataset(length=ROWS, seed=42)
    theirs = loop(accelerate.Accelerator(cpu=True), DataLoader(rows, BATCH, sampler=SessionOrder(ROWS)))
    ours, weights, told = alone(adapted, tmp_path / "ours")
    assert ours.steps == STEPS
    assert close(weights, theirs.state_dict())
    assert ours.digest == alone(native, tmp_path / "native")[0].digest
    errors = {step: values["error"] for step, values in told.values.items() if "error" in values}
    assert list(errors) == [ROWS // BATCH * epoch for epoch in range(1, EPOCHS + 1)]


@pytest.mark.parametrize("spec", [SPEC, SERVERS], ids=["ring", "servers"])
def test_the_loop_keeps_its_bits_while_a_worker_dies_and_another_one_leaves(
    spec: JobSpec, tmp_path: Path
) -> None:
    ours, _, _ = alone(adapted, tmp_path / "ours")
    play = disturbed(adapted, STEPS, tmp_path, spec)
    assert play.digest == ours.digest


def test_the_loop_makes_the_same_where_its_lines_run_again(tmp_path: Path) -> None:
    assert differing("test_accelerate:adapted", tmp_path) == []


def counted(session: Session) -> None:
    """Ends a loop by the number of its turns: a worker has several for each step."""
    accelerator = ElasticAccelerator(session, dataloader_config=WHOLE)
    model, optimizer, _ = regression()
    loader = DataLoader(RegressionDataset(length=ROWS, seed=42), shuffle=True, batch_size=BATCH)
    loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
    for number, batch in enumerate(loader):
        accelerator.backward(F.mse_loss(model(batch["x"]), batch["y"]))
        if number > 3:
            break


def carried(session: Session) -> None:
    """Goes on from turn to turn with a mean of losses, which is another one on each worker."""
    accelerator = ElasticAccelerator(session, dataloader_config=WHOLE)
    model, optimizer, _ = regression()
    loader = DataLoader(RegressionDataset(length=ROWS, seed=42), shuffle=True, batch_size=BATCH)
    loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
    mean = torch.zeros(())
    for batch in loader:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        mean = 0.9 * mean + 0.1 * loss.detach()
        accelerator.backward(loss / (1 + mean))


def test_a_loop_that_counts_its_turns_is_refused_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"enumerate.*test_accelerate\.py"):
        alone(counted, tmp_path)


def test_what_one_turn_hands_to_the_next_is_named(tmp_path: Path) -> None:
    assert "mean" in alone(carried, tmp_path)[0].reproducible_why
