"""What an `ElasticTrainer` refuses, by name and with what to write instead, and what it does with labels and files."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from ringleader.errors import StepMisuse
from ringleader.train import Session, local_session

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e .[hf]")

from transformers import TrainerCallback, TrainingArguments

from ringleader.adapters.transformers import ElasticTrainer

SPEC = {
    "name": "refused",
    "entrypoint": "refused:train",
    "batch": {"global_size": 8, "logical_shards": 2},
    "workers": {"max": 2},
}


@pytest.fixture
def session() -> Iterator[Session]:
    with local_session(SPEC) as opened:
        yield opened


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of three numbers, each with two labels, of which few rows have some that count: in each step none of the
    first slice."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        labels = torch.tensor([1, 0]) if row % 8 > 4 else torch.tensor([-100, -100])
        return {"x": torch.full((3,), float(row)), "labels": labels}


class Classifier(nn.Module):
    """Two labels for each row; its loss is a mean over those that count, as models of transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **named: Any) -> dict[str, torch.Tensor]:
        logits = self.layer(x).view(-1, 2, 2)
        total = nn.functional.cross_entropy(
            logits.transpose(1, 2), labels, ignore_index=-100, reduction="sum"
        )
        return {"loss": total / named["num_items_in_batch"], "logits": logits}


def arguments(**others: Any) -> TrainingArguments:
    given = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "disable_tqdm": True, "use_cpu": True}
    return TrainingArguments(**({"output_dir": gettempdir()} | given | others))


def trainer(session: Session, callbacks: Any = None, **others: Any) -> ElasticTrainer:
    return ElasticTrainer(
        session,
        model=Classifier(),
        args=arguments(**others),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=callbacks,
    )


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"per_device_train_batch_size": 8}, r"16 rows \(batch size 8 × accumulation 1 × 2 logical shards\).* is 8"),
        ({"gradient_accumulation_steps": 2}, r"16 rows \(batch size 4 × accumulation 2 × 2 logical shards\).* is 8"),
        ({"eval_strategy": "steps"}, "eval_strategy='epoch'"),
        ({"bf16": True}, "precision: bf16"),
        ({"report_to": "tensorboard"}, "ringleader metrics"),
        ({"torch_compile": True}, "torch_compile"),
        ({"auto_find_batch_size": True}, "raise logical_shards"),
        ({"fsdp": True}, r"TrainingArguments\(fsdp=True\) cannot be kept.*splits no model"),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_cannot_be_kept_are_refused_by_name(
    session: Session, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(StepMisuse, match=says):
        trainer(session, **asked)


def test_deepspeed_is_refused_before_the_trainer_asks_for_it(session: Session) -> None:
    args = arguments()
    args.deepspeed = {
        "zero_optimization": {"stage": 2}
    }  # without the package not even the arguments can be made
    with pytest.raises(StepMisuse, match=r"TrainingArguments\(deepspeed=.*splits no model"):
        ElasticTrainer(session, Classifier(), args, train_dataset=Rows())


class ReadsGradients(TrainerCallback):
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        pass


class EvaluatesInside(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_evaluate = True


def test_a_callback_between_backward_and_update_is_refused(session: Session) -> None:
    with pytest.raises(StepMisuse, match=r"ReadsGradients\.on_pre_optimizer_step .*on_step_end"):
        trainer(session, [ReadsGradients()])


def test_an_evaluation_inside_of_an_epoch_is_refused(session: Session) -> None:
    with pytest.raises(StepMisuse, match="eval_strategy='epoch'"):
        trainer(session, [EvaluatesInside()], save_strategy="no").train()


def test_a_folder_to_resume_from_is_refused(session: Session, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text("{}")
    with pytest.raises(StepMisuse, match="a later attempt of the job goes on by itself"):
        trainer(session)._prepare_for_training(1, None, str(tmp_path))  # type: ignore[arg-type]


def test_slices_count_by_their_labels_and_one_without_any_is_no_nan(session: Session) -> None:
    """The mean over all labels of a step that count is that of one process."""
    mine = trainer(session, save_strategy="no", train_sampling_strategy="sequential", learning_rate=0.0)
    mine.train()
    assert session.global_step == 2
    rows = [Rows()[row] for row in range(8, 16)]
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("x", "labels")}
    counted = batch["labels"].ne(-100).sum()
    assert session.loss == pytest.approx(
        mine.model(**batch, num_items_in_batch=counted)["loss"].item(), abs=1e-6
    )


def test_no_folders_of_checkpoints_are_written_and_that_is_said(session: Session, elsewhere: None) -> None:
    mine = trainer(session, save_strategy="steps", save_steps=1, output_dir="nowhere")
    mine.train()
    assert not list(Path("nowhere").glob("checkpoint-*"))
    told = [data["message"] for kind, data in session._sink.events if kind == "warning"]  # type: ignore[attr-defined]
    assert "save_strategy='steps' writes no checkpoint-… folders in a job." in told
