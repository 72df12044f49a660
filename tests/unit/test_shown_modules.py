"""A metric that is a module, filled and shown by a body, is no concern of the other workers; one by which anything goes
on is."""

import importlib.util
import sys
from pathlib import Path

import pytest
from test_unkept_state import spec

from ringleader.train.local import run_local

pytestmark = pytest.mark.usefixtures("elsewhere")

PROGRAM = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("hits", torch.tensor(0))
        self.register_buffer("rows", torch.tensor(0))

    def forward(self, out, y):
        self.update(out, y)
        return self.compute()

    def update(self, out, y):
        self.hits += (out.argmax(1) == y).sum()
        self.rows += len(y)

    def compute(self):
        if self.rows == 0:
            return torch.tensor(0.0)
        return self.hits / self.rows

    def reset(self):
        self.hits.zero_()
        self.rows.zero_()

class States(Counting):
    def __init__(self):
        nn.Module.__init__(self)
        self.defaults = {{}}
        self.add_state("hits", torch.tensor(0))
        self.add_state("rows", torch.tensor(0))

    def add_state(self, name, default):
        self.defaults[name] = default
        setattr(self, name, default.clone())

    def reset(self):
        for name, default in self.defaults.items():
            setattr(self, name, default.clone())

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.accuracy, self.logged = nn.Linear(4, 2), States(), {{}}

    def forward(self, x):
        return self.net(x)

    def training_step(self, x, y):
        out = self.net(x)
        {step}

class Judge:
    def __init__(self, metric):
        self.metric = metric

    def __call__(self, out, y):
        return F.cross_entropy(out, y) * (2 - self.metric.compute())

def rows():
    x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > x[:, 1]).long())

def train(session):
    torch.manual_seed(0)
    net = session.model({net})
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    metric = Counting()
    judge = {judge}
    for _ in range(2):
        for x, y in session.batches(rows()):
            {turn}
        {behind}
"""
UPDATE = "out = net(x); metric.update(out.detach(), y); session.step({})"
LOSS = "F.cross_entropy(out, y)"
SHOWN = "print(metric.compute()); metric.reset()"
LOGGED = "self.accuracy.update(out.detach(), y); return F.cross_entropy(out, y)"


def told(place: Path, turn: str, behind: str, *, step: str = "", judge: str = "F.cross_entropy") -> str:
    """Why a run of the program promises no bits."""
    net = "Whole()" if step else "nn.Linear(4, 2)"
    source = PROGRAM.format(turn=turn, behind=behind, step=step or "return out", net=net, judge=judge)
    file = place / f"{place.name}.py"
    file.write_text(source)
    module = importlib.util.spec_from_file_location(file.stem, file)
    assert module is not None
    assert module.loader is not None
    program = sys.modules[file.stem] = importlib.util.module_from_spec(module)
    try:
        module.loader.exec_module(program)
        finished, _ = run_local(spec(), program.train, place)
    finally:
        del sys.modules[file.stem]
    return finished.reproducible_why


@pytest.mark.parametrize(
    ("turn", "behind"),
    [
        (UPDATE.format(LOSS), SHOWN),
        ("out = net(x); metric(out.detach(), y); session.step(F.cross_entropy(out, y))", SHOWN),
        (f"out = net(x); now = metric(out.detach(), y); session.step({LOSS}); print(now)", SHOWN),
    ],
)
def test_a_metric_that_is_only_shown_is_nobody_s_concern(turn: str, behind: str, tmp_path: Path) -> None:
    assert told(tmp_path, turn, behind) == ""


@pytest.mark.parametrize(
    ("turn", "behind", "judge"),
    [
        (UPDATE.format("F.cross_entropy(out, y) * (2 - metric.compute())"), "pass", ""),
        ("out = net(x); session.step(F.cross_entropy(out, y) * (2 - metric(out.detach(), y)))", "pass", ""),
        (UPDATE.format("F.cross_entropy(out, y) + out.square().mean() * metric.rows"), "pass", ""),
        (UPDATE.format("judge(out, y)"), "pass", "Judge(metric)"),
        (UPDATE.format(LOSS), "optimizer.param_groups[0]['lr'] *= float(metric.compute())", ""),
        (UPDATE.format(LOSS), "if metric.compute() > 0.99: break", ""),
    ],
)
def test_a_metric_by_which_anything_goes_on_is_told(
    turn: str, behind: str, judge: str, tmp_path: Path
) -> None:
    assert "metric" in told(tmp_path, turn, behind, judge=judge or "None")


TURN = "session.step(net.training_step(x, y))"


@pytest.mark.parametrize(
    ("step", "behind", "why"),
    [
        (LOGGED, "print(net.accuracy.compute()); net.accuracy.reset()", ""),
        (f"self.logged['now'] = self.accuracy(out.detach(), y); return {LOSS}", "print(net.logged)", ""),
        (f"return {LOSS} * (2 - self.accuracy(out.detach(), y))", "pass", "accuracy.hits"),
        (
            "self.accuracy.update(out.detach(), y); parts = [m for m in self.modules() if isinstance(m, States)]; "
            "return F.cross_entropy(out, y) + out.square().mean() * parts[0].rows / 1000",
            "pass",
            "accuracy.rows",
        ),
        (LOGGED, "optimizer.param_groups[0]['lr'] *= float(net.accuracy.compute())", "accuracy.hits"),
    ],
)
def test_a_metric_in_a_registered_model_is_told_where_anything_goes_by_it(
    step: str, behind: str, why: str, tmp_path: Path
) -> None:
    found = told(tmp_path, TURN, behind, step=step)
    assert (why in found, found == "") == (True, why == "")
