"""transformers' Trainer keeps its library's result and the session's bits, also while workers come and go."""

from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import torch
from adapted import BATCH, EPOCHS, SERVERS, SHARDS, SPEC, SessionOrder, alone, close, differing, disturbed
from cast import Cast
from faults import FaultPlan
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

from ringleader.spec import JobSpec
from ringleader.train import Session

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e .[hf]")

from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from ringleader.adapters.transformers import ElasticTrainer

ROWS, WORDS = 64, 97
STEPS = EPOCHS * ROWS // BATCH
RATE, NORM = 1e-2, 1.0


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Rows of words, of which each has another number of labels that count."""

    def __init__(self, count: int = ROWS, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.words = torch.randint(0, WORDS, (count, 12), generator=draw)
        self.labels = self.words.clone()
        for row, length in enumerate(torch.randint(3, 12, (count,), generator=draw).tolist()):
            self.labels[row, length:] = -100

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[row], "labels": self.labels[row]}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=64, **sizes))


def arguments(rows_of_a_device: int, **others: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=gettempdir(),
        per_device_train_batch_size=rows_of_a_device,
        num_train_epochs=EPOCHS,
        learning_rate=RATE,
        max_grad_norm=NORM,
        lr_scheduler_type="linear",
        save_strategy="no",
        logging_steps=3,
        disable_tqdm=True,
        use_cpu=True,
        **others,
    )


def adapted(session: Session, optim: str = "adamw_torch_fused") -> None:
    trainer = ElasticTrainer(
        session,
        model=llama(),
        args=arguments(BATCH // SHARDS, eval_strategy="epoch", optim=optim),
        train_dataset=Tokens(),
        eval_dataset=Tokens(16, seed=5),
    )
    trainer.train()
    assert trainer.state.global_step == STEPS
    logged = [log["step"] for log in trainer.state.log_history if "loss" in log]
    assert logged == list(range(3, STEPS + 1, 3)), logged
    evaluated = [log["step"] for log in trainer.state.log_history if "eval_loss" in log]
    assert evaluated == [ROWS // BATCH * epoch for epoch in range(1, EPOCHS + 1)], evaluated


def native(session: Session) -> None:
    model = session.model(llama())
    optimizer = Trainer(model=model, args=arguments(BATCH)).create_optimizer()
    session.optimizer(optimizer, clip_norm=NORM)
    session.scheduler(LambdaLR(optimizer, lambda step: max(0.0, (STEPS - step) / STEPS)))
    for _ in range(EPOCHS):
        model.train()
        for batch in session.batches(Tokens(), collate=default_data_collator):
            items = batch["labels"][..., 1:].ne(-100).sum()
            session.step(model(**batch, num_items_in_batch=items).loss, weight=float(items))


class InOrder(Trainer):
    """The library's own trainer, in the session's order of rows."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SessionOrder:
        return SessionOrder(ROWS)

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        # Accelerate's loaders would make a seeded sampler of their own.
        order = self._get_train_sampler()
        return torch.utils.data.DataLoader(Tokens(), BATCH, sampler=order, collate_fn=default_data_collator)


def test_the_trainer_ends_as_transformers_does(tmp_path: Path) -> None:
    # Not with Adam, which makes a whole step of the rounding of a gradient that is nearly 0.
    theirs = InOrder(model=llama(), args=arguments(BATCH, optim="sgd"), train_dataset=Tokens())
    theirs.train()
    ours, weights, told = alone(partial(adapted, optim="sgd"), tmp_path)
    assert ours.steps == STEPS
    state = theirs.model.state_dict()
    assert close(weights, {name: state[name] for name in weights})
    logged = [(log["step"], log["learning_rate"]) for log in theirs.state.log_history if "loss" in log]
    recorded = {n: values["learning_rate"] for n, values in told.values.items() if "learning_rate" in values}
    assert list(recorded.items()) == logged
    losses = [log["loss"] for log in theirs.state.log_history if "loss" in log]
    means = [sum(told.values[step - k]["loss"] for k in range(3)) / 3 for step, _ in logged]
    assert means == pytest.approx(losses, abs=1e-5)  # sums of slices here, of whole batches there


def test_the_trainer_has_the_bits_of_a_native_function(tmp_path: Path) -> None:
    assert alone(adapted, tmp_path / "ours")[0].digest == alone(native, tmp_path / "native")[0].digest


@pytest.mark.parametrize("spec", [SPEC, SERVERS], ids=["ring", "servers"])
def test_the_trainer_keeps_its_bits_while_a_worker_dies_and_another_one_leaves(
    spec: JobSpec, tmp_path: Path
) -> None:
    ours, _, _ = alone(adapted, tmp_path / "ours")
    play = disturbed(adapted, STEPS, tmp_path, spec)
    assert play.digest == ours.digest
    logged = [step for step, values in play.values if "learning_rate" in values]
    assert logged == list(range(3, STEPS + 1, 3))


def stopped_early(session: Session) -> None:
    """Early stopping by evaluations, and the best weights at the end; a rate that makes it worse from the first."""
    trainer = ElasticTrainer(
        session,
        model=llama(),
        args=arguments(
            BATCH // SHARDS, eval_strategy="epoch", load_best_model_at_end=False, metric_for_best_model="loss"
        ),
        train_dataset=Tokens(),
        eval_dataset=Tokens(16, seed=5),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0)],
    )
    trainer.train()
    assert trainer.state.global_step == 2 * ROWS // BATCH, trainer.state.global_step


def test_a_worker_that_comes_late_stops_early_with_the_others(tmp_path: Path) -> None:
    ours, _, _ = alone(stopped_early, tmp_path / "ours")
    faults = FaultPlan().kill("w1", at_step=ROWS // BATCH + 1)
    play = Cast(SPEC, stopped_early, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == ours.digest


def ended_by_steps(session: Session) -> None:
    args = arguments(BATCH // SHARDS)
    args.max_steps = 6
    trainer = ElasticTrainer(session, model=llama(), args=args, train_dataset=Tokens())
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.state.epoch == 1.5


def test_max_steps_ends_an_epoch_in_its_middle_for_all(tmp_path: Path) -> None:
    ours, _, _ = alone(ended_by_steps, tmp_path / "ours")
    assert ours.steps == 6
    play = Cast(SPEC, ended_by_steps, FaultPlan().kill("w2", at_step=5), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == ours.digest


def test_the_trainer_makes_the_same_where_its_lines_run_again(tmp_path: Path) -> None:
    assert differing("test_transformers:adapted", tmp_path) == []
