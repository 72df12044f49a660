"""What a program's variables are compared by."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from ringleader.train.between_calls.value_fingerprints import ValueReader
from ringleader.train.state.training_state import TrainingState


def test_weights_in_a_variable_are_what_training_has_and_copies_are_not() -> None:
    """Members that run lines again may do so on newer weights, which lines that read none of them need not tell."""
    held, net = TrainingState(), nn.Linear(3, 2)
    held.models.append(net)
    body, copied = list(net.parameters()), [p.detach().clone() for p in net.parameters()]
    before = [ValueReader(held, {}).text(value) for value in (body, copied)]
    with torch.no_grad():
        for weight in (*body, *copied):
            weight.add_(1.0)
    after = [ValueReader(held, {}).text(value) for value in (body, copied)]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_tensors_of_a_kept_model_are_committed_but_for_buffers_that_nobody_saves() -> None:
    held, kept = TrainingState(), nn.BatchNorm1d(2)
    kept.register_buffer("unsaved", torch.zeros(2), persistent=False)
    held.kept["teacher"] = kept
    told = {
        name: ValueReader(held, {}).text(tensor)
        for name, tensor in (*kept.named_parameters(), *kept.named_buffers())
    }
    assert [name for name, text in told.items() if text is not None] == ["unsaved"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_weight_that_a_hook_computes_from_others_is_not_compared() -> None:
    held = TrainingState()
    held.models.append(torch.nn.utils.weight_norm(nn.Linear(3, 2)))
    held.kept["teacher"] = torch.nn.utils.weight_norm(nn.Linear(3, 2))
    for net in (*held.models, held.kept["teacher"]):
        assert isinstance(net, nn.Linear)
        assert ValueReader(held, {}).text(net.weight) is None
        assert ValueReader(held, {}).text(net.weight.detach().clone()) is not None


def test_paths_in_the_working_directory_are_the_same_for_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for worker in ("w0", "w1"):
        here = tmp_path / worker
        here.mkdir()
        monkeypatch.chdir(here)
        paths = [here / "data", str(here / "data"), f"file://{here}/data", [here], "/data"]
        told.append([ValueReader(TrainingState(), {}).text(path) for path in paths])
    assert told[0] == told[1]
    assert None not in told[0]
    assert len(set(told[0])) == len(told[0]) - 1  # a path and the same as a text


def test_temporary_files_are_not_compared() -> None:
    with tempfile.NamedTemporaryFile() as file:
        assert ValueReader(TrainingState(), {}).text(file.name) is None


def test_a_library_s_wrapper_of_a_registered_optimizer_is_not_compared() -> None:
    """Servers have a part of its state each."""
    held, optimizer = TrainingState(), torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    held.optimizers.append((optimizer, None))

    class Renamed(torch.optim.SGD):
        pass

    class Wrapper(torch.optim.SGD):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.optimizer = inner

    renamed = object.__new__(Renamed)
    renamed.__dict__ = vars(optimizer)
    for wrapped in (optimizer, renamed, Wrapper(optimizer), Wrapper(renamed)):
        assert ValueReader(held, {}).text(wrapped) is None, wrapped
    other = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    assert ValueReader(held, {}).text(other) is not None
