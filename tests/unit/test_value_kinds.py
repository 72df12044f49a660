"""Which function, class or layer a value is."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ringleader.train.between_calls.objects.value_kinds import kind_of, layers_of


class Plain:
    def __call__(self, value: float) -> float:
        return value

    def twice(self, value: float) -> float:
        return 2 * value


class Doubled(Plain):
    def __call__(self, value: float) -> float:
        return self.twice(value)


def replaced(change: Callable[[Any], object]) -> Plain:
    made = Plain()
    change(made)
    return made


def own_class() -> type[Plain]:
    class Own(Plain):
        def twice(self, value: float) -> float:
            return 3 * value

    return Own


def other_method() -> type[Plain]:
    kind = own_class()
    kind.twice = lambda self, value: value  # type: ignore[method-assign]
    return kind


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Plain(), Doubled()),
        (Plain, Doubled),
        (Plain(), replaced(lambda made: setattr(made, "twice", made.__call__))),
        (own_class(), other_method()),
        (own_class()(), other_method()()),
        (torch.tanh, torch.sigmoid),
        (Plain().twice, Plain().__call__),
        (partial(F.cross_entropy, reduction="sum"), partial(F.nll_loss, reduction="sum")),
        (nn.CrossEntropyLoss(), nn.MultiMarginLoss()),
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)),
    ],
)
def test_another_one_in_its_place_is_told_apart(one: Any, other: Any) -> None:
    assert None is not kind_of(one) != kind_of(other) is not None


@pytest.mark.parametrize(
    "make", [Plain, own_class, nn.CrossEntropyLoss, lambda: Plain().twice, lambda: torch.tanh]
)
def test_the_same_one_made_again_is_the_same(make: Callable[[], Any]) -> None:
    assert kind_of(make()) == kind_of(make())


@pytest.mark.parametrize(
    "value", [None, 1, "text", [1], torch.zeros(2), F.cross_entropy, SimpleNamespace(a=1)]
)
def test_a_value_that_is_told_by_what_it_holds_has_no_kind(value: Any) -> None:
    assert kind_of(value) is None


def test_layers_are_told_by_what_stands_in_place_of_their_forward() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    before = list(layers_of(net))
    net[0].extra = 7.0
    net[1].forward = torch.relu
    assert [one != other for one, other in zip(before, layers_of(net), strict=True)] == [False, True, True]
    assert list(layers_of(net, {"extra"}))[1] == before[1]
