"""What a training function raises: the error says where in the program."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import TensorDataset

from ringleader import Session
from ringleader.errors import EntrypointRaised
from ringleader.train.local import run_local

torch.set_num_threads(1)
SPEC: dict[str, Any] = {
    "name": "unit",
    "entrypoint": "unit:train",
    "workers": {"max": 4},
    "batch": {"global_size": 16},
}


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(56, 5, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


class Raises:
    """A training function that raises at one of its places."""

    def __init__(self, place: str, *, held: bool = False) -> None:
        self.place, self.held = place, held

    def at(self, place: str) -> None:
        if place == self.place:
            raise KeyError("where is it")

    def __call__(self, session: Session) -> None:
        self.at("top")
        model = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for epoch in range(3):
            batches = [session.batches(rows())]
            for x, y in batches[0] if self.held else batches.pop():
                if session.global_step == 6:
                    self.at("turn")
                session.step(F.cross_entropy(model(x), y))
                if session.global_step == 6:
                    self.at("behind")
                    if self.place == "exit":
                        raise SystemExit(3)
            if epoch == 1:
                self.at("between")
                session.evaluate(rows(), self.score)

    def score(self, _batch: Any) -> dict[str, Tensor]:
        self.at("score")
        return {"one": torch.ones(len(_batch[0]))}


@pytest.mark.parametrize(
    ("place", "where"),
    [
        ("top", "raised before the first step:"),
        ("turn", r"raised in step 7 \(epoch 1, slice 0\):"),
        ("behind", "raised behind step 6, in epoch 1:"),
        ("exit", "raised behind step 6, in epoch 1:"),
        ("between", "raised behind step 8, between epoch 1 and 2:"),
        ("score", "raised behind step 8, between epoch 1 and 2:"),
    ],
)
def test_what_a_program_raises_names_its_step_epoch_and_slice(place: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(EntrypointRaised, match=where) as caught:
        run_local(SPEC, Raises(place), tmp_path)
    assert "Traceback" in caught.value.message
    assert ("SystemExit" if place == "exit" else "where is it") in caught.value.message.splitlines()[-1]


@pytest.mark.parametrize("held", [False, True], ids=["the loop's own", "in a variable"])
@pytest.mark.parametrize("place", ["turn", "behind", "between"])
def test_a_program_that_raises_leaves_the_thread_as_it_was(place: str, held: bool, tmp_path: Path) -> None:
    """What watches its tensors between loops is gone with it, also where a traceback keeps the loop's iterator."""
    train = Raises(place, held=held)
    with pytest.raises(EntrypointRaised) as caught:
        run_local(SPEC, train, tmp_path)
    assert _get_current_dispatch_mode_stack() == []
    del train, caught
    gc.collect()
    assert _get_current_dispatch_mode_stack() == []
