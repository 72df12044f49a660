"""TRL's trainers keep their library's result and the session's bits, also while workers come and go."""

from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import torch
from adapted import BATCH, EPOCHS, SHARDS, SessionOrder, alone, close, disturbed
from torch.utils.data import DataLoader, Sampler

from ringleader.train import Session

pytest.importorskip("trl", reason="trl is not installed: pip install -e .[trl]")

from datasets import Dataset
from test_transformers import ROWS, STEPS, WORDS, llama
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from ringleader.adapters.trl import ElasticDPOTrainer, ElasticSFTTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w2")


def texts(count: int, seed: int) -> list[str]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (count,), generator=draw).tolist()
    return [
        " ".join(f"w{n}" for n in torch.randint(3, WORDS, (length,), generator=draw).tolist())
        for length in lengths
    ]


def answers() -> Dataset:
    return Dataset.from_dict({"prompt": texts(ROWS, 0), "completion": texts(ROWS, 1)})


def preferences() -> Dataset:
    return Dataset.from_dict({"prompt": texts(ROWS, 0), "chosen": texts(ROWS, 1), "rejected": texts(ROWS, 2)})


SETTINGS: dict[str, Any] = {
    "output_dir": gettempdir(),
    "num_train_epochs": EPOCHS,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "optim": "sgd",
    "save_strategy": "no",
    "logging_steps": 3,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
}


def sft(trainer: Any, rows_of_a_device: int, *given: Any) -> Any:
    args = SFTConfig(**SETTINGS, per_device_train_batch_size=rows_of_a_device)
    return trainer(*given, model=llama(), args=args, train_dataset=answers(), processing_class=tokenizer())


def dpo(trainer: Any, rows_of_a_device: int, *given: Any) -> Any:
    args = DPOConfig(**SETTINGS, per_device_train_batch_size=rows_of_a_device, beta=2.0)
    return trainer(
        *given,
        model=llama(),
        ref_model=llama(),
        args=args,
        train_dataset=preferences(),
        processing_class=tokenizer(),
    )


def adapted(session: Session, made: Any) -> None:
    of = {sft: ElasticSFTTrainer, dpo: ElasticDPOTrainer}
    trainer = made(of[made], BATCH // SHARDS, session)
    trainer.train()
    assert trainer.state.global_step == STEPS


class InOrder:
    """A trainer of the library's own, in the session's order of rows."""

    def _get_train_sampler(self, *_: Any) -> Sampler[int]:
        return SessionOrder(ROWS)

    def get_train_dataloader(self) -> DataLoader[Any]:
        # Accelerate's loaders would make a seeded sampler of their own.
        rows = self._remove_unused_columns(self.train_dataset, description="training")  # type: ignore[attr-defined]
        return DataLoader(
            rows,
            BATCH,
            sampler=self._get_train_sampler(),
            collate_fn=self.data_collator,  # type: ignore[attr-defined]
        )


class SFTInOrder(InOrder, SFTTrainer):  # type: ignore[misc]
    pass


class DPOInOrder(InOrder, DPOTrainer):  # type: ignore[misc]
    pass


@pytest.mark.parametrize(
    ("made", "in_order", "measured"),
    [
        (sft, SFTInOrder, {"entropy", "mean_token_accuracy"}),
        (dpo, DPOInOrder, {"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"}),
    ],
)
def test_a_trainer_ends_as_trl_does(made: Any, in_order: Any, measured: set[str], tmp_path: Path) -> None:
    theirs = made(in_order, BATCH)
    theirs.train()
    ours, weights, told = alone(partial(adapted, made=made), tmp_path)
    assert ours.steps == STEPS
    state = theirs.model.state_dict()
    assert close(weights, {name: state[name] for name in weights})
    before = llama().state_dict()
    assert not close(weights, {name: before[name] for name in weights})
    # Of all rows of a step, in each step; theirs are means over the steps between two logs.
    assert all(measured <= values.keys() for values in told.values.values())
    first = next(log for log in theirs.state.log_history if "loss" in log)
    for name in measured - {"rewards/accuracies"}:
        mean = sum(told.values[step][name] for step in (1, 2, 3)) / 3
        assert mean == pytest.approx(first[name], rel=1e-3, abs=1e-4)
    assert all("num_tokens" not in values for values in told.values.values())


@pytest.mark.parametrize("made", [sft, dpo])
def test_a_trainer_keeps_its_bits_while_a_worker_dies_and_another_one_leaves(
    made: Any, tmp_path: Path
) -> None:
    ours, _, _ = alone(partial(adapted, made=made), tmp_path / "ours")
    play = disturbed(partial(adapted, made=made), STEPS, tmp_path)
    assert play.digest == ours.digest
