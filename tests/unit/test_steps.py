"""Loops over `session.steps`: the bits of `session.batches`, and lines between two steps that all members run."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from test_leaving import COPIES, IN_STEP, LEASED, MERGED, RING, ROUNDS, SERVERS, job, made, rows, worker
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from undisturbed import undisturbed

from ringleader.errors import StepMisuse
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.session_base.values import NO_NORM

torch.set_num_threads(1)
PER_LOOP, STEPS = 6, 12
MODES = {name: sync for name, sync in IN_STEP.items() if name != "server"}


class Best:
    """The best score, and how many were heard. Implements Stateful."""

    def __init__(self) -> None:
        self.score, self.heard = 0.0, 0

    def hear(self, score: float) -> None:
        self.score, self.heard = max(self.score, score), self.heard + 1

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def hits(session: Session, net: nn.Module, data: TensorDataset) -> float:
    def score(batch: Any) -> dict[str, Tensor]:
        return {"hit": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    return session.evaluate(data, score)["hit"]


def by_batches(session: Session) -> None:
    net, data = made(session), rows()
    for _ in range(2):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))


def by_steps(session: Session) -> None:
    net, data = made(session), rows()
    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))


def evaluating(session: Session) -> None:
    """Evaluates twice behind every second step, and goes by it: the weights in the end depend on what lines kept."""
    net, data, best = made(session), rows(), Best()
    session.keep("best", best)
    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            if session.global_step % 2 == 0:
                best.hear(hits(session, net, data))
                best.hear(hits(session, net, data) + session.global_step / 100)
            session.best(net, -abs(session.global_step - 8.0))
            if session.global_step == 10:
                break
    with torch.no_grad():
        net[0].weight.add_(best.score + best.heard)


def check(play: Play, program: Callable[[Session], None], sync: dict[str, Any]) -> None:
    finished, sink = undisturbed(job(sync), program)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == finished.digest
    assert [step for step, _ in play.values] == list(range(1, finished.steps + 1))
    scores = {step: values["hit"] for step, values in sink.values.items() if "hit" in values}
    assert {step: values["hit"] for step, values in play.values if "hit" in values} == scores
    assert play.reported("member.differed") == []


@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_steps_give_the_bits_of_batches(sync: dict[str, Any], tmp_path: Path) -> None:
    play = ThreadedCast(job(sync), by_steps, artifacts=tmp_path).play()
    check(play, by_batches, sync)
    assert play.worlds == [3]


@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_evaluations_between_steps_are_the_same_for_any_world(sync: dict[str, Any], tmp_path: Path) -> None:
    check(ThreadedCast(job(sync), evaluating, artifacts=tmp_path).play(), evaluating, sync)


@pytest.mark.parametrize("phase", ["forward", "exchange", "committed", "evaluate"])
@pytest.mark.parametrize("at", range(11))
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_a_kill_anywhere_costs_no_bit(sync: dict[str, Any], at: int, phase: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill(worker(sync, 1), at_step=at, phase=phase)
    play = ThreadedCast(job(sync), evaluating, faults, artifacts=tmp_path).play()
    check(play, evaluating, sync)


@pytest.mark.everyday
@pytest.mark.parametrize("at", range(11))
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_who_joins_at_any_step_costs_no_bit(sync: dict[str, Any], at: int, tmp_path: Path) -> None:
    faults = FaultPlan().resize(at_step=at, workers_min=1, workers_max=3)
    faults = faults.linger(worker(sync, 0), since_step=at, for_generation=2)
    spec = job(sync, workers={"min": 1, "max": 2})
    play = ThreadedCast(spec, evaluating, faults, artifacts=tmp_path).play()
    check(play, evaluating, sync)


def adapting(session: Session) -> None:
    """Its scores change weights for the rows that they see, in place and past autograd: for the next rows, and behind
    the evaluation, they are as committed."""
    net, data = made(session), rows()

    def score(batch: Any) -> dict[str, Tensor]:
        net[0].bias.add_(batch[0].mean())
        net[0].weight.data *= 0.5
        return {"hit": net(batch[0]).abs().mean(dim=1)}

    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            if session.global_step % 2 == 0:
                session.evaluate(data, score)
        before = [p.detach().clone() for p in net.parameters()]
        session.evaluate(data, score)
        assert all(map(torch.equal, before, net.parameters()))


@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_weights_that_a_score_changes_are_put_back(sync: dict[str, Any], tmp_path: Path) -> None:
    faults = FaultPlan().kill(worker(sync, 1), at_step=8, phase="evaluate")
    check(ThreadedCast(job(sync), adapting, faults, artifacts=tmp_path).play(), adapting, sync)


class Adapted(nn.Linear):
    """A low-rank adapter that is merged in eval mode, as loralib has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "Adapted":
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.up.data @ self.down.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        whole = super().forward(x)
        return whole if self.merged else whole + x @ self.down.t() @ self.up.t()


def adapted(session: Session) -> None:
    """Evaluates behind steps and between loops: a module that merges its weights has them apart behind it."""
    data = rows()
    net = session.model(nn.Sequential(Adapted(data.tensors[0].shape[1], 8), nn.Tanh(), Adapted(8, 3)))
    with torch.no_grad():  # threads share the default generator
        for parameter in net.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.7, parameter.numel()).view_as(parameter))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    for _ in range(2):
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            if session.global_step % 2 == 0:
                before = [p.detach().clone() for p in net.parameters()]
                hits(session, net, data)
                assert not net[0].merged
                assert all(map(torch.equal, before, net.parameters()))
        hits(session, net, data)
        assert net[2].training


@pytest.mark.parametrize("moment", ["kill", "kill in evaluate", "join"])
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_layers_that_merge_in_eval_mode_keep_their_bits(
    sync: dict[str, Any], moment: str, tmp_path: Path
) -> None:
    if moment == "join":
        faults = FaultPlan().resize(at_step=5, workers_min=1, workers_max=3)
        spec = job(sync, workers={"min": 1, "max": 2})
    else:
        phase = "evaluate" if "evaluate" in moment else "forward"
        faults, spec = FaultPlan().kill(worker(sync, 1), at_step=8, phase=phase), job(sync)
    check(ThreadedCast(spec, adapted, faults, artifacts=tmp_path).play(), adapted, sync)


@pytest.mark.parametrize("at", range(1, 11))
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_a_pause_at_any_step_is_resumed_with_its_bits(sync: dict[str, Any], at: int, tmp_path: Path) -> None:
    saved, spec = str(tmp_path / "saved"), job(sync, checkpoint={"every_steps": 3})
    faults = FaultPlan().pause(at_step=at)
    for number in range(3):
        faults = faults.linger(worker(sync, number), since_step=at, for_generation=2)
    first = ThreadedCast(spec, evaluating, faults, artifacts=tmp_path / "1", checkpoints=saved).play()
    if first.outcome == "succeeded":  # the pause came behind the last step
        return
    assert first.outcome == "paused", (first.reason, first.message)
    other = job(sync, checkpoint={"every_steps": 3}, workers={"min": 2, "max": 2})
    again = ThreadedCast(other, evaluating, artifacts=tmp_path / "2", checkpoints=saved, attempt=2).play()
    finished, _ = undisturbed(job(sync), evaluating)
    assert again.outcome == "succeeded", (again.reason, again.message)
    assert again.digest == finished.digest
    assert again.reported("checkpoint.restored") != []


def with_lines(lines: Callable[[Session, nn.Module, Any], None]) -> Callable[[Session], None]:
    """Three steps with these lines behind each."""

    def train(session: Session) -> None:
        net, data = made(session), rows()
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            lines(session, net, step)
            if session.global_step == 3:
                break

    return train


def refused(program: Callable[[Session], None], sync: dict[str, Any], place: Path) -> str:
    with pytest.raises(StepMisuse) as caught:
        run_local(job(sync), program, place)
    return str(caught.value)


def test_modes_without_common_steps_refuse_by_name(tmp_path: Path) -> None:
    play = ThreadedCast(job(LEASED), by_steps, artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "workers do not commit a step together: they lease items" in play.message


def half_a_step(session: Session) -> None:
    net, data = made(session), rows()
    for step in session.steps(data):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y))
            break


def no_slice(session: Session) -> None:
    made(session)
    for _ in session.steps(rows()):
        pass


def evaluated_between_slices(session: Session) -> None:
    net, data = made(session), rows()
    for step in session.steps(data):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y))
            hits(session, net, data)


def loop_in_a_loop(session: Session) -> None:
    net, data = made(session), rows()
    for step in session.steps(data):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y))
        for _ in session.batches(data):
            pass


def best_in_a_body(session: Session) -> None:
    net, data = made(session), rows()
    for x, y in session.batches(data):
        session.best(net, 1.0)
        session.step(F.cross_entropy(net(x), y))


def makes_an_average(session: Session, net: nn.Module, _: Any) -> None:
    session.ema(net, 0.9)


def keeps_late(session: Session, net: nn.Module, _: Any) -> None:
    session.keep("late", net)


def counted(session: Session) -> None:
    net, data = made(session), rows()
    for step in islice(session.steps(data), 3):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y))


def sets_a_rate(session: Session) -> None:
    net, data = made(session), rows()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    session.optimizer(optimizer)
    for step in session.steps(data):
        for x, y in step:
            session.step(F.cross_entropy(net(x), y))
        optimizer.param_groups[0]["lr"] *= 0.5


def changes_weights(_: Session, net: Any, __: Any) -> None:
    with torch.no_grad():
        net[0].weight.mul_(0.9)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (half_a_step, "a step of session.steps was left before it was committed"),
        (no_slice, "a step of session.steps was left before it was committed"),
        (evaluated_between_slices, "session.evaluate was called between two slices of a step"),
        (loop_in_a_loop, "a session call was made inside a loop over session.steps."),
        (best_in_a_body, "session.best was called inside a loop over session.batches."),
        (with_lines(makes_an_average), "session.ema was called inside a loop over session.steps."),
        (with_lines(keeps_late), "session.keep was called inside a loop over session.steps."),
        (counted, "islice(…) iterates over session.steps"),
        (sets_a_rate, "between two steps of session.steps"),
        (with_lines(changes_weights), "the weights '0.weight' were changed inside a loop over session.steps"),
    ],
)
def test_what_a_step_cannot_be_is_refused_in_words(
    program: Callable[[Session], None], told: str, tmp_path: Path
) -> None:
    assert told in refused(program, RING, tmp_path)


def test_a_worker_without_slices_runs_the_lines_with_names_of_the_body(tmp_path: Path) -> None:
    """The only batch of three rows has slices for three of four workers, and none for the server."""
    few = TensorDataset(*(part[:3] for part in rows().tensors))
    seen = []

    def train(session: Session) -> None:
        net = session.model(nn.utils.skip_init(nn.Linear, 5, 3))
        nn.init.zeros_(net.weight)
        nn.init.zeros_(net.bias)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for step in session.steps(few):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            seen.append((x.shape[1], session.global_step))

    for sync in (RING, SERVERS, ROUNDS):
        seen.clear()
        play = ThreadedCast(job(sync, workers={"min": 4, "max": 4}), train, artifacts=tmp_path).play()
        assert play.outcome == "succeeded", (play.reason, play.message)
        assert seen == [(5, 1)] * (6 if sync is SERVERS else 4)


def test_the_norm_is_that_of_the_whole_gradient(tmp_path: Path) -> None:
    norms: dict[str, list[float | None]] = {}

    def train(session: Session) -> None:
        net = made(session, clip_norm=0.5)
        told = norms.setdefault(f"{session.is_main}{len(norms)}", [])
        plain = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        assert session.norm is None
        for step in session.steps(rows()):
            plain.load_state_dict(net.state_dict())
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            told.append(session.norm)

    whole = job(RING, batch={"global_size": 72, "logical_shards": 1}, workers={"min": 1, "max": 1})
    run_local(whole, train, tmp_path)
    (alone_told,) = norms.values()
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape).remainder(5) / 5 - 0.3)
    x, y = rows().tensors
    F.cross_entropy(net(x), y).backward()
    by_hand = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    # The rows come in another order here: some units in the last place of float32.
    torch.testing.assert_close(torch.tensor(alone_told[0]), by_hand.detach(), rtol=1e-4, atol=0)


def values_of(session: Session) -> tuple[float | None, int, int, int]:
    return session.norm, *session.position


@pytest.mark.parametrize("sync", [RING, MERGED], ids=["ring", "merged"])
def test_norm_and_position_are_equal_on_all_members_and_one_is_main(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    seen: dict[int, list[Any]] = {}
    mains: dict[int, int] = {}

    def look(session: Session, net: nn.Module, _: Any) -> None:
        seen.setdefault(session.global_step, []).append(values_of(session))
        mains[session.global_step] = mains.get(session.global_step, 0) + session.is_main

    play = ThreadedCast(job(sync), with_lines(look), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert mains == {1: 1, 2: 1, 3: 1}
    for step, told in seen.items():
        assert len(told) == 3
        assert len(set(told)) == 1
        norm, *position = told[0]
        assert norm is not None
        assert position == [0, step, 0]


@pytest.mark.parametrize("sync", [SERVERS, ROUNDS, COPIES], ids=["servers", "local_sgd", "copies"])
def test_where_only_some_have_the_gradient_there_is_no_norm(sync: dict[str, Any], tmp_path: Path) -> None:
    seen = set()
    play = ThreadedCast(
        job(sync), with_lines(lambda session, *_: seen.add(session.norm)), artifacts=tmp_path
    ).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert seen == {None}
    told = [data["message"] for data in play.reported("warning") if data["about"] == "norm"]
    # With local SGD one process has none either: nothing to tell.
    assert told == ([] if sync is ROUNDS else [NO_NORM])


def test_learning_rates_are_logged_as_they_were_for_the_step(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net, data = made(session), rows()
        optimizer = torch.optim.SGD(
            [{"params": net[0].parameters(), "lr": 0.2}, {"params": list(net.parameters())[2:], "lr": 0.4}]
        )
        session.optimizer(optimizer)
        session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))

    for sync in (RING, SERVERS, ROUNDS):
        play = ThreadedCast(job(sync), train, artifacts=tmp_path).play()
        assert play.outcome == "succeeded", (play.reason, play.message)
        rates = [(values["lr/0"], values["lr/1"]) for _, values in play.values]
        assert rates == [(0.2, 0.4)] * 2 + [(0.1, 0.2)] * 2 + [(0.05, 0.1)] * 2
