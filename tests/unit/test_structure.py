"""A registered model stays what it was at the first loop, and so do the groups that optimizers step. What a program
puts in their places is refused at once, in a job that nothing happens to, with its line and with what to write."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_body_checks import MODES, job, rows
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

from ringleader import Session
from ringleader.errors import StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.local import run_local
from ringleader.train.run import WEIGHTS

torch.set_num_threads(1)
Line = Callable[[nn.Sequential, torch.optim.Optimizer], Any]
TOP, IN_BODY = -1, -2


class Program:
    """Three loops; a line before one of them, at the top, in the body of the second, or at the end.

    Attributes:
        at: of the loop; TOP, IN_BODY, or 3 for the end.
    """

    def __init__(self, line: Line, at: int = 1) -> None:
        self.line, self.at = line, at

    def __call__(self, session: Session) -> None:
        net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        for weight in net.parameters():  # the cast's members are threads, which share their generator
            nn.init.constant_(weight, 0.1)
        groups = [{"params": list(net[3].parameters())}, {"params": list(net[:2].parameters()), "lr": 0.05}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        if self.at == TOP:
            self.line(net, optimizer)
        session.model(net)
        session.optimizer(optimizer)
        for number in range(3):
            if number == self.at:
                self.line(net, optimizer)
            for x, y in session.batches(rows()):
                if self.at == IN_BODY and session.global_step >= 4:
                    self.line(net, optimizer)
                session.step(F.cross_entropy(net(x), y))
        if self.at == 3:
            self.line(net, optimizer)


def assign(net: nn.Sequential, _: Any) -> None:
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)


def new_weight(net: nn.Sequential, _: Any) -> None:
    net[3].weight = nn.Parameter(torch.zeros(2, 8))


def new_head(net: nn.Sequential, _: Any) -> None:
    net[3] = nn.Linear(8, 2)


def pruned(net: nn.Sequential, _: Any) -> None:
    prune.l1_unstructured(net[0], "weight", 0.5)


def normalized(net: nn.Sequential, _: Any) -> None:
    parametrizations.weight_norm(net[0])


def deeper(net: nn.Sequential, _: Any) -> None:
    net.add_module("4", nn.Linear(2, 2))


def with_buffer(net: nn.Sequential, _: Any) -> None:
    net.register_buffer("mask", torch.ones(2))


def wider(net: nn.Sequential, _: Any) -> None:
    net[3].weight.data = torch.zeros(4, 8)


def half(net: nn.Sequential, _: Any) -> None:
    net.half()


def double(net: nn.Sequential, _: Any) -> None:
    net.to(torch.float64)


def elsewhere(net: nn.Sequential, _: Any) -> None:
    net.to("meta")


def popped(_: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.pop()


def replaced(_: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups = optimizer.param_groups[1:]


def extended(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.zeros(1)))


MODELS = [
    (assign, "has a new parameter object '0.weight'", "without assign=True"),
    (new_weight, "has a new parameter object '3.weight'", "without assign=True"),
    (new_head, "has a new parameter object '3.weight'", "without assign=True"),
    (pruned, "no longer has '0.weight'", r"parameter\.mul_\(mask\)"),
    (normalized, "no longer has '0.weight'", "at the top"),
    (deeper, "has a new entry '4.weight'", "at the top"),
    (with_buffer, "has a new entry 'mask'", "at the top"),
    (wider, r"has '3.weight' with shape \(4, 8\) instead of \(2, 8\)", "never their shape"),
    (half, "has '0.weight' as torch.float16", "before session.model"),
    (double, "has '0.weight' as torch.float64", "before session.model"),
    (elsewhere, "has '0.weight' as torch.float32 on meta", "session.device"),
]
UNSEEN = [wider, half, double, elsewhere]
"""No module hears of it: the sentence names the call at which it was found, unless only one line looks like it."""
GROUPS = [popped, replaced, extended]


def of(line: Line) -> str:
    """Its place as a sentence names it."""
    return rf"test_structure\.py:{line.__code__.co_firstlineno + 1}: "


@pytest.mark.parametrize(("line", "what", "cure"), MODELS)
def test_another_model_is_refused_at_the_next_call(line: Line, what: str, cure: str, tmp_path: Path) -> None:
    place = of(line) if line not in UNSEEN else r"above test_structure\.py:\d+"
    with pytest.raises(StepMisuse, match=f"{what}.*{place}.*{cure}"):
        run_local(job("ring"), Program(line), tmp_path)


@pytest.mark.parametrize("line", GROUPS)
def test_a_group_that_loses_or_gets_parameters_is_refused(line: Line, tmp_path: Path) -> None:
    with pytest.raises(
        StepMisuse, match=r"were removed from a parameter group.*above test_structure.*requires_grad_"
    ):
        run_local(job("ring"), Program(line), tmp_path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("line", "what"), [(assign, "has a new parameter object"), (popped, "a parameter group")]
)
def test_the_job_fails_with_these_words_in_every_mode(
    mode: str, line: Line, what: str, tmp_path: Path
) -> None:
    play = ThreadedCast(JobSpec.parse(job(MODES[mode])), Program(line), artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert what in play.message


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_put_into_a_model_by_a_body_is_refused_in_its_turn(mode: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"new parameter object '3\.weight'"):
        run_local(job(MODES[mode]), Program(new_weight, IN_BODY), tmp_path)


def zeros(net: nn.Sequential, _: Any) -> None:
    net[3].weight.data = torch.zeros(2, 8)


def clipped(net: nn.Sequential, _: Any) -> None:
    with torch.no_grad():
        net[3].weight.clamp_(-0.01, 0.01)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("line", [zeros, clipped])
def test_weights_that_a_body_changes_are_refused_in_its_turn(mode: str, line: Line, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"the weights '3.weight' were changed inside a loop.*on_commit"):
        run_local(job(MODES[mode]), Program(line, IN_BODY), tmp_path)


def test_weights_that_a_body_clips_unseen_by_versions_are_found(tmp_path: Path) -> None:
    """As the first Wasserstein GANs did it, in every turn."""

    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            for parameter in net.parameters():
                parameter.data.clamp_(-0.01, 0.01)

    with pytest.raises(
        StepMisuse, match=r"the weights 'bias' were changed inside a loop.*parameter\.data\.clamp_"
    ):
        run_local(job("ring"), train, tmp_path)


class MomentumContrast(nn.Module):
    """The encoder of keys follows the one of queries in each forward, and has begun as its copy."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(5, 2), nn.Linear(5, 2)
        for q, k in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
            k.data.copy_(q.data)
            k.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for q, k in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
                k.data = k.data * 0.9 + q.data * 0.1
        return self.queries(x) + self.keys(x).detach()


def test_what_a_forward_does_to_weights_is_told_by_its_line_and_not_by_one_of_the_beginning(
    tmp_path: Path,
) -> None:
    def train(session: Session) -> None:
        net = session.model(MomentumContrast())
        net.queries.bias.data.zero_()
        session.optimizer(torch.optim.SGD(net.queries.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))

    said = r"'keys.weight' were changed inside a loop.*: k\.data = k\.data \* 0\.9.* is session\.ema\("
    with pytest.raises(StepMisuse, match=said):
        run_local(job("ring"), train, tmp_path)


class FrozenStatistics(nn.Module):
    """Running statistics that are frozen parameters, as functional networks of meta-learning have them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.mean, self.var = (
            nn.Parameter(value, requires_grad=False) for value in (torch.zeros(2), torch.ones(2))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.layer(x), self.mean, self.var, training=True)


class FollowingInPlace(nn.Module):
    """The encoder of keys follows in place, through `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys = nn.Linear(5, 2), nn.Linear(5, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for q, k in zip(self.queries.parameters(), self.keys.parameters(), strict=True):
            k.data.mul_(0.9).add_(q.data, alpha=0.1)
        return self.queries(x) + self.keys(x).detach()


@pytest.mark.parametrize(("made", "name"), [(FrozenStatistics, "mean"), (FollowingInPlace, "keys.weight")])
def test_frozen_parameters_that_a_forward_changes_unseen_by_versions_are_found(
    made: type[nn.Module], name: str, tmp_path: Path
) -> None:
    def train(session: Session) -> None:
        net = session.model(made())
        session.optimizer(torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match=rf"the weights '{name}' were changed inside a loop.*in a buffer"):
        run_local(job("ring"), train, tmp_path)


SCRIPT = """
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from test_body_checks import rows


def train(session):
    net = session.model(nn.Linear(5, 2))
    optimizer = session.optimizer(torch.optim.SGD([{"params": [p]} for p in net.parameters()], lr=0.1))
    for number in range(2):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        change(net, optimizer)


def change(net, optimizer):
    %s
"""


@pytest.mark.parametrize(
    "line",
    [
        "net.half()",
        "net.to(torch.float64)",
        "net.weight.data = torch.zeros(3, 5)",
        "optimizer.param_groups.pop()",
        "del optimizer.param_groups[0]",
        "optimizer.param_groups = optimizer.param_groups[:1]",
        "optimizer.param_groups[0]['params'].clear()",
    ],
)
def test_the_line_is_named_where_only_one_looks_like_it(line: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT % line)
    program: dict[str, Any] = {"__name__": "script"}
    exec(compile(script.read_text(), str(script), "exec"), program)
    with pytest.raises(StepMisuse, match=re.escape(f"script.py:18: {line}")):
        run_local(job("ring"), program["train"], tmp_path)


def frozen(net: nn.Sequential, _: Any) -> None:
    net[0].requires_grad_(False)


def activated(net: nn.Sequential, _: Any) -> None:
    net.add_module("4", nn.Tanh())


def moved(net: nn.Sequential, _: Any) -> None:
    net.to("cpu").float().eval().train()


def added(net: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": list(net[3].parameters())}) if not optimizer.param_groups else None


def zeroed(net: nn.Sequential, _: Any) -> None:
    net[3].weight.data = torch.zeros(2, 8)
    net[1].reset_running_stats()


@pytest.mark.parametrize("line", [frozen, activated, moved, added, zeroed])
def test_what_leaves_the_model_what_it_is_is_the_programs_own(line: Line, tmp_path: Path) -> None:
    assert run_local(job("ring"), Program(line), tmp_path)[0].steps == 9


@pytest.mark.parametrize("line", [pruned, normalized, double, popped])
def test_at_the_top_everything_may_be_changed(line: Line, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        groups = [{"params": list(net[:2].parameters())}, {"params": list(net[3].parameters())}]
        line(net, torch.optim.SGD(groups))
        session.model(net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x.to(net[3].weight.dtype)), y))

    assert run_local(job("ring"), train, tmp_path)[0].steps == 3


def without_statistics(net: nn.Sequential, _: Any) -> None:
    net[1].register_buffer("running_mean", None)


def sparse(net: nn.Sequential, _: Any) -> None:
    net[1].running_var = net[1].running_var[:4].clone()


@pytest.mark.parametrize("line", [assign, half, without_statistics, sparse])
def test_behind_the_last_loop_too(line: Line, tmp_path: Path) -> None:
    """There nothing is trained any more: the weights left behind are the program's."""
    models: list[nn.Sequential] = []
    program = Program(lambda net, optimizer: (line(net, optimizer), models.append(copy.deepcopy(net))), at=3)
    assert run_local(job("ring"), program, tmp_path)[0].steps == 9
    left = {name: (tensor.dtype, tensor.shape) for name, tensor in models[0].state_dict().items()}
    written = load_file(tmp_path / WEIGHTS)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in written.items()} == left


@pytest.mark.parametrize("mode", ["ring", "parameter_server"])
def test_masks_made_permanent_behind_the_last_loop_end_a_job_in_any_number(mode: str, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = nn.Linear(5, 2)
        for weight in net.parameters():  # the cast's members are threads, which share their generator
            nn.init.constant_(weight, 0.1)
        prune.l1_unstructured(net, "weight", 0.5)
        session.model(net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        prune.remove(net, "weight")

    expected = run_local(job(mode), train, tmp_path)[0].digest
    play = ThreadedCast(JobSpec.parse(job(mode)), train, artifacts=tmp_path / "members").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == expected
    (written,) = tmp_path.glob(f"members/*/{WEIGHTS}")
    assert sorted(load_file(written)) == ["bias", "weight"]


def test_modules_are_made_in_other_threads_while_sessions_come_and_go(tmp_path: Path) -> None:
    """torch walks through its registration hooks without a lock: sessions leave them as they are."""
    hooks = torch.nn.modules.module._global_module_registration_hooks
    before = list(hooks)
    seen: list[bool] = []

    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            seen.append(list(hooks) == before)
            session.step(F.cross_entropy(net(x), y))

    run_local(job("ring"), train, tmp_path)
    assert set(seen) == {True}
    assert list(hooks) == before
