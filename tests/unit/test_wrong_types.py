"""What has the wrong type is refused by a sentence that says what to write, not by an AttributeError of ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader import Session
from ringleader.errors import StepMisuse
from ringleader.train.local import run_local

torch.set_num_threads(1)
SPEC: dict[str, Any] = {"name": "unit", "entrypoint": "unit:train", "batch": {"global_size": 8}}


def rows() -> TensorDataset:
    return TensorDataset(torch.randn(16, 5), torch.zeros(16, dtype=torch.int64))


def trains(
    place: Path,
    *,
    step: Callable[[Session, Tensor], None] = Session.step,
    score: Callable[[Any], Any] | None = None,
    before: Callable[[Session], Any] = lambda _session: None,
) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        before(session)
        for x, y in session.batches(rows()):
            step(session, F.cross_entropy(net(x), y, reduction="none").mean())
        if score is not None:
            session.evaluate(rows(), score)

    run_local(SPEC, train, place)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda _: {"acc": 0.5}, "score 'acc' is 0.5, a float, not a tensor."),
        (lambda _: {"acc": "good"}, "score 'acc' is 'good', a str, not a tensor."),
        (lambda b: {"acc": np.ones(len(b[0]))}, "score 'acc' is array"),
        (
            lambda b: torch.ones(len(b[0])),
            r"score returned a tensor of shape \(8,\) instead of values by name",
        ),
        (
            lambda b: torch.ones(len(b[0]), 64),
            r"score returned a tensor of shape \(8, 64\) instead of values by name",
        ),
        (lambda _: 0.5, "score returned 0.5, a float instead of values by name"),
        (lambda _: None, "score returned None, a NoneType instead of values by name"),
        (lambda _: {"acc": torch.ones(3)}, r"score 'acc' has shape \(3,\) for 8 rows"),
    ],
)
def test_scores_that_are_no_values_by_row(score: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=message) as caught:
        trains(tmp_path, score=score)
    assert "return {'accuracy': (prediction == label)}" in caught.value.hint


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda loss: loss.item(), r"session.step got [\d.]+, a float, as the loss"),
        (lambda _: "0.5", "session.step got '0.5', a str, as the loss"),
        (lambda _: None, "session.step got None, a NoneType, as the loss"),
        (lambda loss: loss.repeat(8), r"session.step got a loss of shape \(8,\)"),
    ],
)
def test_losses_that_are_no_one_tensor(loss: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=message) as caught:
        trains(tmp_path, step=lambda session, value: session.step(loss(value)))
    assert "Write session.step(loss" in caught.value.hint


@pytest.mark.parametrize("value", ["warm", None, [1, "two"]])
def test_a_metric_without_a_mean_is_told_in_our_words(value: Any, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"the metric 'phase' is .*, which has no mean\.") as caught:
        trains(tmp_path, step=lambda session, loss: session.step(loss, phase=value))
    assert "new()" not in str(caught.value)


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (
            lambda s: s.scheduler("cosine"),
            "session.scheduler got a str, which is not a learning-rate schedule",
        ),
        (
            lambda s: s.scheduler(torch.optim.lr_scheduler.CosineAnnealingLR),
            "session.scheduler got the class CosineAnnealingLR, .*: it has no optimizer",
        ),
        (lambda s: s.model("net"), "session.model got a str, which is not a torch.nn.Module"),
    ],
)
def test_what_is_registered_has_its_kind(register: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=message):
        trains(tmp_path, before=register)
