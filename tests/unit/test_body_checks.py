"""Lines of a usual training loop that the session makes itself: in a loop's body they are refused, or do nothing."""

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import TensorDataset

from ringleader import Session, local_session
from ringleader.errors import StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.body.call_checks import SMALL
from ringleader.train.local import run_local

torch.set_num_threads(1)
MODES: dict[str, Any] = {
    "ring": "ring",
    "servers": {"inter_node": "parameter_server", "intra_node": "parameter_server", "servers": 1},
    "leased": {
        "inter_node": "parameter_server",
        "intra_node": "parameter_server",
        "consistency": "ssp",
        "staleness": 0,
    },
    "local_sgd": {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 2},
    "token_ring": "token_ring",
}


def job(sync: Any) -> dict[str, Any]:
    return {
        "name": "unit",
        "entrypoint": "unit:train",
        "workers": {"min": 2, "max": 2},
        "batch": {"global_size": 16, "logical_shards": 4},
        "sync": sync,
        "max_failures": 0,
    }


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 5, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def norm_of(net: nn.Module) -> float:
    return sum(float(p.grad.square().sum()) for p in net.parameters() if p.grad is not None)


class Body:
    """A training function with one of the lines in its loop, before or behind `session.step`."""

    def __init__(self, line: str = "", *, behind: bool = False, between: str = "") -> None:
        self.line, self.behind, self.between = line, behind, between

    def __call__(self, session: Session) -> None:
        net = session.model(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)))
        for weight in net.parameters():  # the cast's members are threads, which share their generator
            nn.init.constant_(weight, 0.1)
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        schedule = session.scheduler(StepLR(optimizer, 2, gamma=0.5))
        lines: dict[str, Callable[[Tensor], Any]] = {
            "": lambda _: None,
            "optimizer.step": lambda _: optimizer.step(),
            "schedule.step": lambda _: schedule.step(),
            "backward": lambda loss: (2 * loss).backward(),
            "clip_grad_norm_": lambda _: nn.utils.clip_grad_norm_(net.parameters(), 1.0),
            "clip_grad_value_": lambda _: nn.utils.clip_grad_value_(net.parameters(), 1e-40),
            "zero_grad": lambda _: optimizer.zero_grad(),
            "zeros": lambda _: optimizer.zero_grad(set_to_none=False),
            "net.zero_grad": lambda _: net.zero_grad(),
            "net.zeros": lambda _: net.zero_grad(set_to_none=False),
            "a norm": lambda _: net[0].weight.grad.norm(),
            "a norm of all": lambda _: norm_of(net),
            "under another name": lambda _: float(getattr(net[2].bias, "grad")[0]),  # noqa: B009
            "a copy": lambda _: net[0].weight.grad.clone(),
            "its values": lambda _: net[0].weight.grad.detach().cpu().tolist(),
            "printed": lambda _: print(net[0].bias.grad),
            "noise": lambda _: net[0].weight.grad.add_(0.1),
            "in a list": lambda _: torch._foreach_norm([p.grad for p in net.parameters()]),
            "its shape": lambda _: net[0].weight.grad is None or net[0].weight.grad.shape,
            "net.to": lambda _: net.to("cpu").float(),
        }
        for _ in range(2):
            for x, y in session.batches(rows()):
                loss = F.cross_entropy(net(x), y)
                if not self.behind:
                    lines[self.line](loss)
                session.step(loss)
                if self.behind:
                    lines[self.line](loss)
            lines[self.between](loss)


READ = (
    r"the gradient of '.*' was read or changed inside a loop over session\.(batches|steps) "
    r"\(test_body_checks\.py:\d+: .*session\.norm.*session\.optimizer\(optimizer, clip_norm="
)
REFUSED = [
    ("optimizer.step", r"SGD\.step\(\) was called inside a loop.*Delete the line"),
    ("schedule.step", r"StepLR\.step\(\) was called.*Delete the line"),
    ("clip_grad_norm_", READ),
]


@pytest.mark.parametrize("behind", [False, True], ids=["before the step", "behind it"])
@pytest.mark.parametrize(("line", "why"), [*REFUSED, ("clip_grad_value_", READ), ("a norm", READ)])
@pytest.mark.parametrize("mode", MODES)
def test_a_line_that_the_session_makes_itself_is_refused_in_a_body(
    mode: str, line: str, why: str, behind: bool, tmp_path: Path
) -> None:
    with pytest.raises(StepMisuse, match=why):
        run_local(job(MODES[mode]), Body(line, behind=behind), tmp_path)


@pytest.mark.parametrize("behind", [False, True], ids=["before the step", "behind it"])
@pytest.mark.parametrize(
    "line", ["a norm of all", "under another name", "a copy", "its values", "printed", "noise", "in a list"]
)
def test_a_gradient_is_not_read_in_a_body_whatever_reads_it(line: str, behind: bool, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=READ):
        run_local(job("ring"), Body(line, behind=behind), tmp_path)


def test_a_line_that_seldom_reads_a_gradient_is_refused_when_it_does(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for turn, (x, y) in enumerate(session.batches(rows())):
            session.step(F.cross_entropy(net(x), y))
            if turn == 11:  # none of those that are looked at anyway
                norm_of(net)

    with pytest.raises(StepMisuse, match=READ):
        run_local(job("ring"), train, tmp_path)


def test_gradients_of_large_weights_are_no_more_to_be_read(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Sequential(nn.Linear(5, SMALL), nn.Linear(SMALL, 2)))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            loss = F.cross_entropy(net(x), y)
            getattr(net[0].weight, "grad").norm()  # noqa: B009
            session.step(loss)

    with pytest.raises(StepMisuse, match=r"the gradient of '0\.weight' was read"):
        run_local(job("ring"), train, tmp_path)


@pytest.mark.parametrize(
    "read",
    [
        lambda session, net: norm_of(net),
        lambda session, net: session.log_histogram("gradient", net.weight.grad),
        lambda session, net: session.save("gradient", {"weight": net.weight.grad}),
    ],
    ids=["norm", "histogram", "saved"],
)
def test_lines_after_a_step_read_no_gradient(read: Callable[[Session, Any], Any], tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for step in session.steps(rows()):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            read(session, net)

    with pytest.raises(StepMisuse, match=READ):
        run_local(job("ring"), train, tmp_path)


def test_a_gradient_that_a_body_keeps_is_not_read_behind_the_loop_either(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        kept = []
        for x, y in session.batches(rows()):
            kept.append(net.weight.grad)
            session.step(F.cross_entropy(net(x), y))
        session.evaluate(rows(), lambda batch: {"zero": torch.zeros(len(batch[0]))})
        print(kept[0])

    with pytest.raises(StepMisuse, match="the gradient of 'weight' was read"):
        run_local(job("ring"), train, tmp_path)


def test_a_variable_that_holds_such_a_gradient_ends_no_job(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        for weight in net.parameters():
            nn.init.constant_(weight, 0.1)
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        last = torch.zeros(1)
        for _ in range(3):
            for x, y in session.batches(rows()):
                last = net.weight.grad  # type: ignore[assignment]
                session.step(F.cross_entropy(net(x), y))
            if last is not None:
                optimizer.param_groups[0]["lr"] *= 0.5
            session.evaluate(rows(), lambda batch: {"zero": torch.zeros(len(batch[0]))})

    spec = JobSpec.parse(job("ring") | {"workers": {"min": 1, "max": 3}, "max_failures": 1})
    play = ThreadedCast(spec, train, FaultPlan().kill("w1", at_step=4), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)


class Norms:
    def __init__(self) -> None:
        self.found: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"found": list(self.found)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.found = list(state["found"])


def looks_behind_commits(session: Session) -> None:
    net = session.model(nn.Linear(5, 2))
    for weight in net.parameters():
        nn.init.constant_(weight, 0.1)
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    norms = Norms()
    assert session.keep("norms", norms) is norms
    session.on_commit(lambda: norms.found.append(norm_of(net)))
    for _ in range(3):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        assert min(norms.found) > 0
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + sum(norms.found))


def test_behind_a_commit_the_whole_gradient_is_there_in_a_ring(tmp_path: Path) -> None:
    alone, _ = run_local(job("ring"), looks_behind_commits, tmp_path / "alone")
    spec = JobSpec.parse(job("ring") | {"workers": {"min": 1, "max": 3}, "max_failures": 1})
    play = ThreadedCast(
        spec, looks_behind_commits, FaultPlan().kill("w1", at_step=4), artifacts=tmp_path / "killed"
    ).play()
    assert (play.outcome, play.digest) == ("succeeded", alone.digest), (play.reason, play.message)
    assert play.reported("member.differed") == []


def test_a_body_may_compile_what_calls_its_model(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        compiled = torch.compile(net, backend="eager")
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(compiled(x), y))

    finished, _ = run_local(job("ring"), train, tmp_path)
    assert finished.steps == 3


@pytest.mark.parametrize("line", ["its shape", "net.to"])
def test_what_reads_no_value_of_a_gradient_changes_no_bit(line: str, tmp_path: Path) -> None:
    plain, _ = run_local(job("ring"), Body(), tmp_path / "plain")
    told, _ = run_local(job("ring"), Body(line, behind=True), tmp_path / "told")
    assert told.digest == plain.digest


@pytest.mark.parametrize("mode", MODES)
def test_a_backward_of_the_programs_own_is_refused_in_a_body(mode: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"backward\(\) was called.*session\.step\(loss_a \+ loss_b\)"):
        run_local(job(MODES[mode]), Body("backward"), tmp_path)


def scaled(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad.mul_(0.5)


@pytest.mark.parametrize("mode", MODES)
def test_a_hook_where_gradients_are_accumulated_is_refused(mode: str, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        net.weight.register_post_accumulate_grad_hook(scaled)  # type: ignore[no-untyped-call]
        for _ in range(2):  # as a second loop begins, the session's own hooks are there as well
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match=r"shape \(2, 5\) has a hook .*test_body_checks\.scaled.*") as raised:
        run_local(job(MODES[mode]), train, tmp_path)
    assert "weight.register_hook" in (raised.value.hint or "")


def test_the_sessions_own_hooks_are_not_refused_in_later_loops(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.EmbeddingBag(60, 2, sparse=True))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(2):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x.abs().long()), y))

    assert run_local(job("ring"), train, tmp_path)[0].steps == 6


@pytest.mark.parametrize("behind", [False, True], ids=["before the step", "behind it"])
@pytest.mark.parametrize("line", ["zero_grad", "zeros", "net.zero_grad", "net.zeros"])
@pytest.mark.parametrize("mode", MODES)
def test_clearing_gradients_in_a_body_changes_no_bit_and_is_told_once(
    mode: str, line: str, behind: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, _ = run_local(job(MODES[mode]), Body(), tmp_path / "plain")
    assert "zero_grad" not in capsys.readouterr().out
    cleared, _ = run_local(job(MODES[mode]), Body(line, behind=behind), tmp_path / "cleared")
    assert cleared.digest == plain.digest
    assert capsys.readouterr().out.count("zero_grad() inside a loop over session.batches does nothing") == 1


@pytest.mark.parametrize("mode", ["servers", "local_sgd", "token_ring"])
@pytest.mark.parametrize(("line", "why"), REFUSED)
def test_the_job_fails_with_these_words_in_every_mode(mode: str, line: str, why: str, tmp_path: Path) -> None:
    play = ThreadedCast(JobSpec.parse(job(MODES[mode])), Body(line), artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert re.search(why.partition(r".*session\.norm")[0], play.message)


@pytest.mark.parametrize("mode", ["servers", "leased"])
def test_a_servers_dry_turn_of_a_body_stands_for_no_mistake(mode: str, tmp_path: Path) -> None:
    alone, _ = run_local(job(MODES[mode]), Body("zero_grad"), tmp_path / "alone")
    play = ThreadedCast(JobSpec.parse(job(MODES[mode])), Body("zero_grad"), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    about = [told["about"] for told in play.reported("warning")]
    assert [what for what in about if what != "variable"] == ["zero_grad"]


def test_gradients_of_a_node_groups_other_slices_are_not_cleared(tmp_path: Path) -> None:
    """There the slices of a round add up in the parameters."""
    node_groups = JobSpec.parse(job({"inter_node": "token_ring", "intra_node": "ring"}))
    play = ThreadedCast(node_groups, Body("net.zero_grad", behind=True), artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "changed by hand" in play.message


def test_a_registered_schedule_is_not_stepped_between_loops_either(tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"Do not register a schedule that advances by epochs"):
        run_local(job("ring"), Body(between="schedule.step"), tmp_path)


@pytest.mark.parametrize("between", ["optimizer.step", "zero_grad", "clip_grad_norm_"])
def test_between_loops_gradients_are_the_programs_own(between: str, tmp_path: Path) -> None:
    finished, _ = run_local(job("ring"), Body(between=between), tmp_path)
    assert finished.steps == 6


def test_input_gradients_are_to_be_had_in_a_body(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            x.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(net(x), y), x)
            session.step(F.cross_entropy(net(x + 0.1 * slope.sign()), y))

    finished, _ = run_local(job("ring"), train, tmp_path)
    assert finished.steps == 3


def test_gradients_of_a_model_of_the_programs_own_are_not_watched(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        other = nn.Linear(5, 2)
        own = torch.optim.SGD(other.parameters(), lr=0.1)
        for x, y in session.batches(rows()):
            F.cross_entropy(other(x), y).backward()
            nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            own.step()
            own.zero_grad()
            session.step(F.cross_entropy(net(x), y))

    finished, _ = run_local(job("ring"), train, tmp_path)
    assert finished.steps == 3


def test_a_registered_schedule_is_copied_pickled_and_saved_as_before() -> None:
    with local_session(job("ring")) as session:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        schedule = StepLR(optimizer, 2, gamma=0.5)
        before = schedule.state_dict()
        assert session.scheduler(schedule) is schedule
        assert isinstance(schedule, StepLR)
        assert (schedule.state_dict(), repr(type(schedule))) == (before, repr(StepLR))
        assert type(copy.deepcopy(schedule)) is StepLR
        assert type(pickle.loads(pickle.dumps(schedule))) is StepLR
    assert type(schedule) is StepLR
    schedule.step()


def test_a_schedule_that_needs_a_metric_is_refused_with_what_to_write() -> None:
    with local_session(job("ring")) as session:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        plateau = ReduceLROnPlateau(optimizer)
        with pytest.raises(
            StepMisuse, match=r"ReduceLROnPlateau needs metrics at each step.*unregistered.*evaluate"
        ):
            session.scheduler(plateau)
        plateau.step(0.5)


@pytest.mark.parametrize(
    ("value", "what"),
    [("text", "'text', a str"), (None, "None, a NoneType"), (object, "a type"), ([[1.0], []], "list")],
)
def test_a_metric_that_is_no_number_is_named(value: Any, what: str) -> None:
    with local_session(job("ring")) as session:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        x, y = next(session.batches(rows()))
        with pytest.raises(StepMisuse, match=f"the metric 'note' is .*{what}.*numbers or tensors"):
            session.step(F.cross_entropy(net(x), y), note=value)


@pytest.mark.parametrize("name", ["samples_per_s", "world_size", "exchange_fraction", "comm_bytes"])
def test_a_metric_that_every_step_has_is_refused_and_not_overwritten(name: str) -> None:
    with local_session(job("ring")) as session:
        net = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        x, y = next(session.batches(rows()))
        with pytest.raises(StepMisuse, match=f"the metric '{name}', which Ringleader measures itself"):
            session.step(F.cross_entropy(net(x), y), **{name: 1.0})
