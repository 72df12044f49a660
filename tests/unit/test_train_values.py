"""What a program's variables are compared by."""

import torch
from torch import nn

from ringleader.train.held import Held
from ringleader.train.values import Reader


def test_weights_in_a_variable_are_what_training_has_and_copies_are_not() -> None:
    """Members that run lines again may do so on newer weights, which lines that read none of them need not tell."""
    held, net = Held(), nn.Linear(3, 2)
    held.models.append(net)
    body, copied = list(net.parameters()), [p.detach().clone() for p in net.parameters()]
    before = [Reader(held, {}).text(value) for value in (body, copied)]
    with torch.no_grad():
        for weight in (*body, *copied):
            weight.add_(1.0)
    after = [Reader(held, {}).text(value) for value in (body, copied)]
    assert after[0] == before[0]
    assert after[1] != before[1]
