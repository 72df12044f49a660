"""Lines between loops may run in torch.inference_mode: what the platform does meanwhile is done outside of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from faults import FaultPlan
from play import Play
from programs import EPOCHS, epoch, network, rows, sgd
from test_programs import DAILY, Cast, job
from undisturbed import undisturbed

from ringleader.train import Session

Program = Callable[[Session], None]


def average(session: Session) -> None:
    """Of the weights behind each loop, copied in inference mode."""
    net = session.model(network())
    sgd(session, net)
    mean: list[torch.Tensor] = []
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        with torch.inference_mode():
            now = [p.clone() for p in net.parameters()]
            mean = [m.lerp(n, 0.5) for m, n in zip(mean or now, now, strict=True)]
        assert not any(
            p.is_inference() for p in net.parameters()
        )  # the platform has made them room meanwhile
    with torch.no_grad():
        for p, m in zip(net.parameters(), mean, strict=True):
            p.copy_(m)


def decay(session: Session) -> None:
    """Weights changed in place in inference mode."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        with torch.inference_mode():
            for p in net.parameters():
                p.mul_(0.9)


def last_words(session: Session) -> None:
    """Weights that end as tensors of inference mode."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
    with torch.inference_mode():
        for p in net.parameters():
            p.data = p.data * 0.9


def scored(session: Session) -> None:
    """An evaluation in inference mode."""
    net = session.model(network())
    sgd(session, net)
    for _ in range(EPOCHS):
        epoch(session, net, rows())
        with torch.inference_mode():
            session.evaluate(rows(), lambda batch: {"right": (net(batch[0]).argmax(1) == batch[1]).float()})


def digest_alone(program: Program, mode: str) -> str:
    torch.set_num_threads(1)
    return undisturbed(job(mode, least=1, most=3, saved_every=None), program)[0].digest


def play(
    program: Program, mode: str, faults: FaultPlan, place: Path, *, count: int, attempt: int = 1
) -> Play:
    spec = job(mode, least=count, most=count)
    saved = str(place / "saved")
    return Cast(spec, program, faults, artifacts=place, checkpoints=saved, attempt=attempt).play()


@pytest.mark.parametrize(
    "program", [average, decay, last_words, scored], ids=lambda program: program.__name__
)
@pytest.mark.parametrize("mode", DAILY)
def test_lines_in_inference_mode_keep_the_bits(program: Program, mode: str, tmp_path: Path) -> None:
    end = play(program, mode, FaultPlan(), tmp_path, count=2)
    assert end.outcome == "succeeded", (end.reason, end.message)
    assert {f.digest for f in end.finished.values()} == {digest_alone(program, mode)}
    assert {f.reproducible_why for f in end.finished.values()} == {""}


@pytest.mark.parametrize("program", [average, last_words], ids=lambda program: program.__name__)
@pytest.mark.parametrize("mode", DAILY)
def test_so_do_those_that_run_again_behind_a_pause(program: Program, mode: str, tmp_path: Path) -> None:
    first = play(program, mode, FaultPlan().pause(at_step=8), tmp_path, count=2)
    assert first.outcome == "paused", (first.reason, first.message)
    end = play(program, mode, FaultPlan(), tmp_path, count=3, attempt=2)
    assert end.outcome == "succeeded", (end.reason, end.message)
    assert {f.digest for f in end.finished.values()} == {digest_alone(program, mode)}
    assert {f.reproducible_why for f in end.finished.values()} == {""}
