"""Tensors of inference mode have no version: what looks for changes in place takes them as they are."""

import torch
from torch import nn

from ringleader.train.body.saved_settings import SavedSettings
from ringleader.train.state.parameters.tensor_version import marks
from ringleader.train.state.training_state import TrainingState


def trained() -> TrainingState:
    """A state whose optimizer has made a step in inference mode: its momentum is an inference tensor."""
    held, net = TrainingState(), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for weight in net.parameters():
        weight.grad = torch.ones_like(weight)
    with torch.inference_mode():
        optimizer.step()
    held.models.append(net)
    held.optimizers.append((optimizer, None))
    return held


def test_an_optimizer_s_state_of_inference_mode_is_watched_by_its_identity() -> None:
    held = trained()
    ((optimizer, _),) = held.optimizers
    states = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert all(state.is_inference() for state in states)
    before = marks(held.weights, [optimizer])
    assert marks(held.weights, [optimizer]) == before
    first = next(iter(optimizer.state.values()))
    first["momentum_buffer"] = first["momentum_buffer"].clone()
    assert marks(held.weights, [optimizer]) != before


def test_a_rate_of_inference_mode_is_a_setting_like_any_other() -> None:
    with torch.inference_mode():
        rate = torch.tensor(0.1)
    ((optimizer, _),) = trained().optimizers
    (group,) = optimizer.param_groups
    group["lr"] = rate
    saved = SavedSettings.of(group)
    assert saved.stands(group)
    assert saved.change(group) is None
    group["lr"] = torch.tensor(0.2)
    assert saved.change(group) is not None


def test_a_callback_runs_on_published_weights_of_inference_mode() -> None:
    held, ran = trained(), []
    with torch.inference_mode():
        held.models = [nn.Linear(3, 2)]
    held.callbacks.append(lambda: ran.append(1))
    held.after_update(seed=0, step=1, published=True)
    assert ran == [1]
