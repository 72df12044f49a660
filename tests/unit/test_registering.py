"""What cannot be registered is refused by a sentence that says what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_raised import SPEC
from torch import nn

from ringleader import Session
from ringleader.errors import StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.local import run_local


class Lookahead:
    """Wraps an optimizer, as many published ones do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups = inner, inner.param_groups


class WithoutSuper(torch.optim.Optimizer):
    """Derived from torch's class, whose `__init__` it does without."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state


def kept_dict(session: Session) -> None:
    session.keep("history", {})  # type: ignore[arg-type]


def half_an_object(session: Session) -> None:
    class Half:
        def state_dict(self) -> dict[str, Any]:
            return {}

    session.keep("half", Half())  # type: ignore[arg-type]


def wrapped(session: Session) -> None:
    net = session.model(nn.Linear(2, 2))
    session.optimizer(Lookahead(torch.optim.SGD(net.parameters(), lr=0.1)))  # type: ignore[type-var]


def without_super(session: Session) -> None:
    net = session.model(nn.Linear(2, 2))
    session.optimizer(WithoutSuper(torch.optim.SGD(net.parameters(), lr=0.1)))


def lazy(session: Session) -> None:
    session.model(nn.Sequential(nn.LazyLinear(3)))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (kept_dict, "got a dict, which has no state_dict and no load_state_dict"),
        (half_an_object, "got a Half, which has no load_state_dict"),
        (wrapped, "got a Lookahead, which is not a torch.optim.Optimizer"),
        (without_super, r"the optimizer class WithoutSuper does not call super\(\).__init__"),
        (lazy, "whose 0.weight has no shape yet"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_cannot_be_registered_is_refused_with_a_sentence(
    program: Callable[[Session], None], said: str, tmp_path: Path
) -> None:
    with pytest.raises(StepMisuse, match=said) as raised:
        run_local(JobSpec.parse(SPEC), program, tmp_path)
    assert raised.value.hint
