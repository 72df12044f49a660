"""What a forward hook sets in an attribute, and the loss of the same turn reads, is no turn's state; what it goes on
from, or leaves for later turns, is."""

import importlib.util
from pathlib import Path
from textwrap import indent

import pytest
from test_unkept_state import spec

from ringleader.train.local import run_local

pytestmark = pytest.mark.usefixtures("elsewhere")

PROGRAM = """
from functools import partial
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.side = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(4, 2)
        self.kept = {made}
        {registered}

{methods}

    def forward(self, x):
        {first}
        return self.head(self.body(x).tanh())

    def loss(self, x, y):
        {lines}

def train(session):
    torch.manual_seed(0)
    net = session.model(Net())
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    x = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        for x, y in session.batches(TensorDataset(x, (x[:, 0] > x[:, 1]).long())):
            session.step(net.loss(x, y))
"""
BY_KEY = """
def keeper(self, name):
    def keep_output(module, given, out):
        {}
    return keep_output
"""
WITH = "out = self(x); return F.cross_entropy(out, y) + {}"
ALL = "sum(each.square().mean() for each in self.kept.values())"
ITS_MEAN = "(self.head.bias * {}).sum()"


def told(
    place: Path,
    registered: str,
    methods: str,
    lines: str,
    made: str = "{}",
    first: str = "pass",
) -> tuple[list[str], bool]:
    """What a run of the program tells of, by name, and whether it promises its bits."""
    source = PROGRAM.format(
        registered=registered, methods=indent(methods, "    "), lines=lines, made=made, first=first
    )
    file = place / f"{place.name}.py"
    file.write_text(source)
    module = importlib.util.spec_from_file_location(file.stem, file)
    assert module is not None
    assert module.loader is not None
    program = importlib.util.module_from_spec(module)
    module.loader.exec_module(program)
    finished, recorded = run_local(spec(), program.train, place)
    found = [data["variable"] for kind, data in recorded.events if kind == "program.differs"]
    return found, finished.reproducible


@pytest.mark.parametrize(
    ("registered", "methods", "lines"),
    [
        (
            "self.head.register_forward_hook(self.keep)",
            "def keep(self, module, given, out): self.kept = out",
            WITH.format("self.kept.square().mean()"),
        ),
        (
            "for n in ('body', 'head'): self.get_submodule(n).register_forward_hook(self.keeper(n))",
            BY_KEY.format("self.kept[name] = out"),
            WITH.format(ALL),
        ),
        (
            "self.head.register_forward_hook(self.keeper('head'))",
            BY_KEY.format("self.kept[name] = out.detach()"),
            WITH.format(ITS_MEAN.format("self.kept['head'].mean(0)")),
        ),
        (
            "self.body.register_forward_hook(partial(self.keep, 'body'))",
            "def keep(self, name, module, given, out): self.kept[name] = out",
            WITH.format(ALL),
        ),
        (
            "self.head.register_forward_pre_hook(lambda m, given: setattr(self, 'kept', given[0].detach()))",
            "",
            WITH.format("(self.head.weight @ self.kept.T).square().mean()"),
        ),
    ],
)
def test_what_a_hook_sets_before_the_turn_reads_it_is_nobody_s_concern(
    registered: str, methods: str, lines: str, tmp_path: Path
) -> None:
    assert told(tmp_path, registered, methods, lines) == ([], True)


KEEPS = "def keep(self, module, given, out): self.kept = out.detach().mean(0)"


@pytest.mark.parametrize(
    ("registered", "methods", "lines", "made", "first"),
    [
        (  # it goes on from what it left
            "self.head.register_forward_hook(self.keep)",
            "def keep(self, module, given, out): self.kept = 0.9 * self.kept + 0.1 * out.detach().mean(0)",
            WITH.format(ITS_MEAN.format("self.kept")),
            "torch.zeros(2)",
            "pass",
        ),
        (  # likewise, by key
            "self.head.register_forward_hook(self.keeper('head'))",
            BY_KEY.format("self.kept[name] = 0.9 * self.kept.get(name, 0) + 0.1 * out.detach().mean(0)"),
            WITH.format(ITS_MEAN.format("self.kept['head']")),
            "{}",
            "pass",
        ),
        (  # not every turn calls the layer that it runs with
            "self.side.register_forward_hook(self.keep)",
            KEEPS,
            WITH.format(ITS_MEAN.format("self.kept")),
            "torch.ones(2)",
            "self.side(x) if x[0, 0] > 0.8 else None",
        ),
        (  # likewise, by key
            "self.side.register_forward_hook(self.keeper('side'))",
            BY_KEY.format("self.kept[name] = out.detach().mean(0)"),
            WITH.format(ITS_MEAN.format("self.kept['side']")),
            "{'side': torch.ones(2)}",
            "self.side(x) if x[0, 0] > 0.8 else None",
        ),
        (  # a turn reads it before the forward
            "self.head.register_forward_hook(self.keep)",
            KEEPS,
            f"before = {ITS_MEAN.format('self.kept')}; return F.cross_entropy(self(x), y) + before",
            "torch.ones(2)",
            "pass",
        ),
        (  # a turn goes on from an entry of its own
            "self.head.register_forward_hook(self.keeper('head'))",
            BY_KEY.format("self.kept[name] = out.detach()"),
            "out = self(x); self.kept['mean'] = 0.9 * self.kept['mean'] + 0.1 * self.kept['head'].mean(0); "
            "return F.cross_entropy(out, y) + (self.head.bias * self.kept['mean']).sum()",
            "{'mean': torch.zeros(2)}",
            "pass",
        ),
    ],
)
def test_what_a_hook_leaves_to_later_turns_is_told_by_its_name(
    registered: str, methods: str, lines: str, made: str, first: str, tmp_path: Path
) -> None:
    found, reproducible = told(tmp_path, registered, methods, lines, made, first)
    assert ("net.kept" in found, reproducible) == (True, False)
