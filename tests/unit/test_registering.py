"""What cannot be registered is refused by a sentence that says what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_raised import SPEC
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

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


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def two_under_one_name(session: Session) -> None:
    session.keep("average", Counter())
    session.keep("average", Counter())


def one_name_in_a_loop(session: Session) -> None:
    for _ in range(2):
        session.keep("average", Counter())


@pytest.mark.parametrize("program", [two_under_one_name, one_name_in_a_loop])
def test_another_object_under_the_name_of_a_kept_one_is_refused_with_both_lines(
    program: Callable[[Session], None], tmp_path: Path
) -> None:
    with pytest.raises(StepMisuse) as raised:
        run_local(JobSpec.parse(SPEC), program, tmp_path)
    first = program.__code__.co_firstlineno + 1
    lines = (first, first + 1) if program is two_under_one_name else (first + 1, first + 1)
    assert "at test_registering.py:{1} got another object than at test_registering.py:{0}".format(
        *lines
    ) in str(raised.value)


def test_one_object_may_be_kept_twice_and_be_made_anew_between_loops(tmp_path: Path) -> None:
    kept: list[Any] = []

    def program(session: Session) -> None:
        net = session.model(nn.Linear(4, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        again = Counter()
        session.keep("again", again)
        session.keep("again", again)
        for _ in range(2):
            phase = Counter()
            session.keep("phase", phase)
            kept.append((phase, session._held.kept["phase"]))
            for x, y in session.batches(TensorDataset(torch.ones(8, 4), torch.zeros(8).long())):
                session.step(F.cross_entropy(net(x), y))
        session.keep("phase", last := Counter())
        kept.append((last, session._held.kept["phase"]))

    run_local(JobSpec.parse(SPEC), program, tmp_path)
    assert [given is held for given, held in kept] == [True, True, True]


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
