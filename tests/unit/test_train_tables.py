"""Embeddings with sparse=True where rows have no way: their gradients become dense."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from threaded_cast import ThreadedCast
from torch import nn
from torch.optim import SGD, Adagrad, Adam
from torch.utils.data import TensorDataset

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)


@pytest.mark.parametrize("kind", [SGD, Adagrad, Adam])
def test_where_rows_do_not_travel_sparse_gradients_become_dense(kind: type[Any], tmp_path: Path) -> None:
    """Servers with copies, against one process that trains the dense embedding."""

    def training(*, sparse: bool) -> Callable[[Session], None]:
        def train(session: Session) -> None:
            table = nn.utils.skip_init(nn.Embedding, 9, 3, sparse=sparse)
            with torch.no_grad():
                table.weight.copy_(torch.arange(27).reshape(9, 3).remainder(5))
            session.model(table)
            session.optimizer(kind(table.parameters(), lr=0.1), clip_norm=0.5)
            for (numbers,) in session.batches(TensorDataset(torch.arange(24).remainder(7))):
                session.step((table(numbers) ** 2).sum(dim=1).mean())

        return train

    copies = JobSpec.parse(
        {
            "name": "dense",
            "entrypoint": "dense:train",
            "workers": {"min": 1, "max": 2},
            "batch": {"global_size": 8},
            "sync": {"inter_node": "ring", "intra_node": "parameter_server"},
        }
    )
    play = ThreadedCast(copies, training(sparse=True), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    alone, _ = run_local(copies, training(sparse=False), tmp_path / "alone")
    assert play.digest == alone.digest
