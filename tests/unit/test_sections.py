"""Lines between session calls: what is recorded for who runs them again, and what is said where it cannot be."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import RING, job, made, rows, worker
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

from ringleader.train import Session
from ringleader.train.between_calls.tensor_access import TensorAccess
from ringleader.train.local import run_local

torch.set_num_threads(1)
LOOPS = 4


def loop(session: Session, net: Any) -> None:
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))


def recorded(lines: Any, place: Path) -> list[dict[str, Any]]:
    """The tensors recorded of each boundary of a program with these lines behind each loop."""
    found: list[dict[str, Any]] = []

    def train(session: Session) -> None:
        net = made(session)
        optimizer = session._held.optimizers[0][0]
        for _ in range(2):
            loop(session, net)
            lines(net, optimizer)
        found.extend(values[3] for values in session._member.sections.state()[1])

    run_local(job(RING), train, place)
    return found


@pytest.mark.parametrize(
    "lines",
    [
        lambda net, optimizer: optimizer.param_groups[0].update(lr=0.01),
        lambda net, optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1).step(),
        lambda net, optimizer: (
            net.train(),
            net.eval(),
            print(net),
            sum(p.numel() for p in net.parameters()),
        ),
        lambda net, optimizer: optimizer.zero_grad(),
        lambda net, optimizer: torch.randn(3) @ torch.randn(3),
    ],
)
def test_lines_that_leave_weights_alone_record_none(lines: Any, tmp_path: Path) -> None:
    assert recorded(lines, tmp_path) == [{}, {}]


@pytest.mark.parametrize(
    "lines",
    [
        lambda net, optimizer: copy.deepcopy(net.state_dict()),
        lambda net, optimizer: net[2].bias.data.numpy().sum(),
        lambda net, optimizer: net(torch.randn(2, 5)),
        lambda net, optimizer: torch.nn.utils.parameters_to_vector(net.parameters()),
        lambda net, optimizer: net[2].reset_parameters(),
        lambda net, optimizer: copy.deepcopy(optimizer.state_dict()),
    ],
)
def test_lines_that_touch_weights_or_an_optimizers_state_have_them_recorded(
    lines: Any, tmp_path: Path
) -> None:
    assert [sorted(tensors) for tensors in recorded(lines, tmp_path)] == [
        ["kept", "models", "optimizers"]
    ] * 2


def test_what_is_recorded_is_what_the_lines_found_not_what_they_left(tmp_path: Path) -> None:
    before: list[float] = []

    def clear(net: Any, _optimizer: Any) -> None:
        bias = net[2].bias.data
        before.append(float(bias[0]))
        bias.zero_()

    tensors = recorded(clear, tmp_path)
    assert [float(t["models"][0]["2.bias"][0]) for t in tensors] == before
    assert before[0] != 0


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "add",
    [lambda layer: prune.l1_unstructured(layer, "weight", 0.3), nn.utils.weight_norm, nn.utils.spectral_norm],
    ids=["pruned", "weight norm", "spectral norm"],
)
def test_lines_find_weights_that_a_hook_computes_as_they_are_at_the_calls_end(
    add: Callable[[nn.Module], Any], tmp_path: Path
) -> None:
    """What the last forward left is older, and none is left on who had no slice. To read them is to read weights."""
    found: list[Tensor] = []
    counts: list[int] = []

    def train(session: Session) -> None:
        net = nn.Linear(5, 3)
        add(net)
        session.model(net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(2):
            loop(session, net)
            found.append(net.weight.detach().clone())
        net.eval()(rows().tensors[0])
        found.append(net.weight.detach())
        counts.extend(len(values[3]) for values in session._member.sections.state()[1])

    run_local(job(RING), train, tmp_path)
    assert torch.equal(found[1], found[2])
    assert counts == [3, 3]


class Hoarding:
    """Copies the weights behind each loop, with less room for them than they take."""

    def __call__(self, session: Session) -> None:
        net = made(session)
        session._member.sections.bound_bytes = 100
        best: Any = None
        for number in range(LOOPS):
            loop(session, net)
            if number != 1:
                best = copy.deepcopy(net.state_dict())
                continue
            best = [p.clone() for p in net.parameters()]
        assert best is not None


def test_what_is_beyond_the_bound_is_said_before_harm_and_in_the_result_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = ThreadedCast(job(RING, workers={"min": 2, "max": 2}), Hoarding(), artifacts=tmp_path).play()
    said = [told["line"].partition(" ")[2] for told in calm.reported("boundary.unrecorded")]
    assert said == ["best = copy.deepcopy(net.state_dict())", "best = [p.clone() for p in net.parameters()]"]
    assert {told["variable"] for told in calm.reported("boundary.unrecorded")} == {"best"}
    assert {f.reproducible_why for f in calm.finished.values()} == {""}
    warned = [
        line for line in capsys.readouterr().out.splitlines() if "best is computed from weights" in line
    ]
    assert len(warned) == 2
    assert all("nothing has gone wrong yet, but in test_sections.py:" in line for line in warned)
    assert all("session.best(model, score)" in line for line in warned)

    faults = FaultPlan().kill(worker(RING, 1), at_step=15)
    play = ThreadedCast(
        job(RING, workers={"min": 2, "max": 3}), Hoarding(), faults, artifacts=tmp_path
    ).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    whys = {f.reproducible_why for f in play.finished.values()}
    assert all("lines between loops read weights" in why for why in whys)
    assert any("(best in test_sections.py:" in why for why in whys)


class Keeper:
    """Keeps what it is told of in attributes."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def see(self, net: Any) -> None:
        self.norms = [float(p.detach().norm()) for p in net.parameters()]


def norm(net: Any) -> float:
    total = net[0].weight.detach().norm()
    return float(total)


BEHIND: dict[str, str] = {
    "{'w': net[0].weight.clone()}": "",
    "print(net[0].weight.norm())": "",
    "score = norm(net)": "score",
    "keeper.see(net)": "keeper",
    "see(net)": "self.norms",
    "history.append(net[0].weight.norm())": "history",
    "net[0].reset_parameters()": "",
}
TEXT = """
def train(session, made, loop, norm, keeper):
    net, history, see = made(session), [], keeper.see
    loop(session, net)
    {line}
    loop(session, net)
"""


def variable_said(line: str, file: Path, tmp_path: Path) -> str:
    """Of a program with that line between its loops, with no room for what it reads."""
    program: dict[str, Any] = {}
    exec(compile(TEXT.format(line=line), file, "exec"), program)

    def train(session: Session) -> None:
        session._member.sections.bound_bytes = 0
        program["train"](session, made, loop, norm, Keeper())

    play = ThreadedCast(job(RING, workers={"min": 1, "max": 1}), train, artifacts=tmp_path).play()
    (told,) = play.reported("boundary.unrecorded")
    return str(told["variable"])


@pytest.mark.parametrize("line", BEHIND)
def test_the_variable_that_a_line_makes_of_weights_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(TEXT.format(line=line))
    assert variable_said(line, file, tmp_path) == BEHIND[line]


def test_a_program_without_text_has_its_line_told_and_that_no_variable_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert variable_said("score = net[0].weight.norm()", Path("<nowhere>"), tmp_path) == ""
    assert "of unknown name, as the program's source is not available" in capsys.readouterr().out


def test_a_mode_of_the_programs_own_may_be_entered_and_left_across_a_watch() -> None:
    """The stack of modes is a stack: the watch goes from under what the program has put above it."""
    watched = torch.zeros(2)
    seen: list[str] = []

    def touched(kind: str) -> list[str]:
        seen.append(kind)
        return [kind]

    watch = TensorAccess({watched.untyped_storage(): "models"}, touched)
    own = TensorAccess({}, touched)
    watch.begin()
    own.begin()
    watch.end()
    watched.add_(1)
    own.end()
    watched.add_(1)
    assert seen == []
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
