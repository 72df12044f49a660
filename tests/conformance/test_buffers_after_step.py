"""What a turn does to buffers after its step counts on no member: not behind the loop, nor in the end of the job."""

from pathlib import Path

import pytest
import torch
from programs import EPOCHS, Program, accuracy, network, norm_free, rows, sgd
from test_carried import SPEC
from test_programs import ALL, DAILY, keeps_its_bits
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import run_local


def scored_by_a_second_forward(session: Session) -> None:
    """In training mode, so that the running means of the norm move once more."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            print((net(x).argmax(1) == y).float().mean().item())


def center_moved_after_the_step(session: Session) -> None:
    net = norm_free()
    net.register_buffer("center", torch.zeros(3))
    session.model(net)
    sgd(session, net)
    for _ in range(EPOCHS):
        for x, y in session.batches(rows()):
            out = net(x)
            session.step(F.cross_entropy(out - net.center, y))
            net.center = 0.9 * net.center + 0.1 * out.detach().mean(0)


def kept_behind_steps(session: Session) -> None:
    """Lines after each step read buffers that slices have moved after theirs."""
    net = session.model(network())
    optimizer = sgd(session, net)
    means = torch.nn.Module()
    means.register_buffer("sum", torch.zeros(8))
    session.keep("means", means)
    for _ in range(EPOCHS):
        for turns in session.steps(rows()):
            for x, y in turns:
                session.step(F.cross_entropy(net(x), y))
                net(x)
            means.sum += net[1].running_mean
        optimizer.param_groups[0]["lr"] *= 0.5 + accuracy(session, net) / 10
        with torch.no_grad():
            net[3].bias[0] += means.sum.mean()


PROGRAMS = [scored_by_a_second_forward, center_moved_after_the_step, kept_behind_steps]
TOLD = {scored_by_a_second_forward: "1.num_batches_tracked", center_moved_after_the_step: "center"}


@pytest.mark.parametrize("moment", ["kill-5", "pause-8"])
@pytest.mark.parametrize("mode", DAILY)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_buffers_that_a_turn_changes_after_its_step_are_the_same_on_all_members(
    program: Program, mode: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, program.__name__, program)
    keeps_its_bits(program.__name__, mode, moment, tmp_path)


@pytest.mark.parametrize("program", TOLD, ids=lambda program: program.__name__)
def test_what_does_not_count_is_told_once_by_its_name(program: Program, tmp_path: Path) -> None:
    _, recorded = run_local(SPEC, program, tmp_path)
    (told,) = [data for kind, data in recorded.events if kind == "warning" and data["about"] == "buffers"]
    assert told["message"].startswith(f"the buffer {TOLD[program]!r} was changed after session.step")


def nothing_changed_after_the_step(session: Session) -> None:
    """The session itself puts buffers back, for the next slice, an evaluation and the lines after a step."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        for turns in session.steps(rows()):
            for x, y in turns:
                session.step(F.cross_entropy(net(x), y))
            if session.global_step % 4 == 0:
                accuracy(session, net)


def test_buffers_that_the_session_puts_back_are_not_warned_of(tmp_path: Path) -> None:
    _, recorded = run_local(SPEC, nothing_changed_after_the_step, tmp_path)
    assert [data for kind, data in recorded.events if kind == "warning"] == []
