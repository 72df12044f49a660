"""Compiled models through kills and joins: the kernels are the same, whichever worker compiles them, and when."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from safetensors.torch import load_file
from test_compiled import CPU, cache, network, train
from test_leaving import RING, job, rows
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.device.compiled_calls import CompiledCalls
from ringleader.train.device.compiled_forward import CACHE, compile_forward
from ringleader.train.local import run_local
from ringleader.train.run import WEIGHTS

torch.set_num_threads(1)
__all__ = ["cache"]
pytestmark = pytest.mark.timeout(900)

ONE_PROCESS = """
import sys, torch
from test_compiled import CPU, network
from ringleader.train.device.compiled_forward import compile_forward
torch.set_num_threads(1)
net = network()
compile_forward(net, CPU)
made = {}
for count in map(int, sys.argv[2:]):
    net.zero_grad()
    torch.manual_seed(0)
    net(torch.linspace(-1, 1, count * 5).reshape(count, 5)).square().sum().backward()
    made[count] = [each.grad.clone() for each in net.parameters()]
torch.save(made, sys.argv[1])
"""


def test_kernels_do_not_depend_on_what_a_process_has_met_before(cache: Path) -> None:
    """Two nodes: nothing that one has compiled is there for the other."""
    made = []
    for number, shapes in enumerate((["3", "2"], ["2", "3"])):
        answer = cache / f"{number}.pt"
        path = ":".join(each for each in sys.path if each)
        env = {"PATH": str(Path(sys.executable).parent) + ":/usr/bin:/bin", "PYTHONPATH": path}
        env[CACHE] = str(cache / f"node-{number}")
        subprocess.run(
            [sys.executable, "-c", ONE_PROCESS, str(answer), *shapes], env=env, check=True, timeout=800
        )
        made.append(torch.load(answer, weights_only=True))
    for count in (2, 3):
        assert all(torch.equal(one, two) for one, two in zip(made[0][count], made[1][count], strict=True))


def test_a_compiled_model_trains_with_the_same_bits_through_kills_and_joins(cache: Path) -> None:
    checked: dict[str, Any] = {"debug": {"check": False}}
    plain, _ = run_local(job(RING, **checked), train, cache / "alone")
    for faults in (
        FaultPlan().kill("w0", at_step=3),
        FaultPlan().kill("w1", at_step=5, phase="exchange"),
        FaultPlan().resize(at_step=4, workers_min=1, workers_max=3),
    ):
        workers = {"min": 1, "max": 2 if faults.resizes else 3}
        spec = job(RING, workers=workers, **checked)
        play = ThreadedCast(spec, train, faults, artifacts=cache / "out").play()
        assert play.outcome == "succeeded", (play.reason, play.message)
        assert play.digest == plain.digest
    (own,) = cache.glob("ringleader-*")
    assert any((own / "compiled").iterdir()), "they were compiled"


def test_a_compiled_model_computes_what_the_model_does(cache: Path) -> None:
    from torch._dynamo.utils import counters

    net, plain = network().eval(), network().eval()
    compile_forward(net, CPU)
    torch._dynamo.reset()
    counters.clear()
    for count in (4, 3):
        x = torch.linspace(-1, 1, count * 5).reshape(count, 5)
        # Fused kernels round in another order: some units in the last place.
        torch.testing.assert_close(net(x), plain(x), rtol=1e-5, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 2, "one for each shape"


def step(net: nn.Module, count: int) -> list[Tensor]:
    x = torch.linspace(-1, 1, count * 5).reshape(count, 5)
    return list(torch.autograd.grad(net(x).square().sum(), list(net.parameters())))


def test_what_a_joiner_compiles_beside_is_what_its_turns_need(cache: Path) -> None:
    from torch._dynamo.utils import counters

    member, joiner, plain = network(), network(), network()
    met, own = compile_forward(member, CPU), compile_forward(joiner, CPU)
    for count in (4, 3):
        step(member, count)
    with torch.no_grad():
        member.eval()(torch.ones(4, 5))
    torch._dynamo.reset()
    counters.clear()
    drawn = torch.get_rng_state()
    own.compile(met.met())
    assert counters["stats"]["unique_graphs"] == 3, "two shapes in training, and one evaluated"
    # Nothing of it is seen: no gradient, no running mean, no number drawn, no mode.
    assert all(each.grad is None for each in joiner.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert joiner.training
    for (name, kept), value in zip(joiner.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(kept, value), name
    for count in (4, 3):
        step(joiner, count)
    with torch.no_grad():
        joiner.eval()(torch.ones(4, 5))
    assert counters["stats"]["unique_graphs"] == 3
    assert own.met() == met.met()


def test_a_joiner_whose_lines_ran_a_forward_alone_compiles_the_backward_too(cache: Path) -> None:
    """As the turn does that makes up for a finished loop: its step does nothing."""
    from torch._dynamo.callback import CallbackArgs, callback_handler

    x = torch.linspace(-1, 1, 15).reshape(3, 5)
    # Of another node: nothing that a member has compiled is there.
    met = CompiledCalls(network(), lambda *_: None, CPU)
    met.note((x,), {})
    joiner = network()
    own = compile_forward(joiner, CPU)
    joiner(x)
    own.compile(met.met())
    late: list[CallbackArgs] = []
    callback_handler.register_start_callback(late.append)
    try:
        step(joiner, 3)
    finally:
        callback_handler.remove_start_callback(late.append)
    assert late == []


def test_a_joiner_compiles_before_it_is_counted(cache: Path) -> None:
    from torch._dynamo.callback import CallbackArgs, callback_handler

    seen: list[tuple[str, str, int]] = []

    def note(what: str) -> None:
        seen.append((what, threading.current_thread().name, max(map(len, worlds()), default=0)))

    def worlds() -> list[tuple[str, ...]]:
        return [plan.members for plan in cast.formed]

    def trains(session: Session) -> None:
        net = session.model(network(), compile=True)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(3):
            for x, y in session.batches(rows()):
                note("turn")
                session.step(F.cross_entropy(net(x), y))

    def compiling(_: CallbackArgs) -> None:
        note("compiling")

    workers = {"min": 1, "max": 1}
    cues = FaultPlan().resize(at_step=2, workers_min=2, workers_max=2)
    cues = cues.dawdle("w0", from_step=3, for_generation=2)
    spec = job(RING, workers=workers, debug={"check": False})
    compile_forward(fresh := network(), CPU)
    step(fresh, 3)  # the compiler's own part, which takes longest, is in the cache from here on
    cast = ThreadedCast(spec, trains, cues, artifacts=cache / "out", joiners_follow=True)
    callback_handler.register_start_callback(compiling)
    try:
        play = cast.play()
    finally:
        callback_handler.remove_start_callback(compiling)
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.worlds == [1, 2]
    joiners = [(what, world) for what, worker, world in seen if worker == "w1"]
    turns = joiners.index(("turn", 2))
    # Alone the member trains on meanwhile, and with the joiner's seat nothing is left to compile.
    assert joiners[:turns] == [("compiling", 1)] * turns
    assert turns > 0
    assert {what for what, _ in joiners[turns:]} == {"turn"}


def test_weights_lead_from_a_compiled_model_to_one_that_is_not_and_back(cache: Path) -> None:
    """By the names that the model has, in the file and in what a job begins with."""
    quick: dict[str, Any] = {"debug": {"check": False}}

    def kept(compiled: bool) -> Any:
        def train(session: Session) -> None:
            net = session.model(network(), compile=compiled)
            session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))

        return train

    run_local(job(RING, **quick), kept(True), cache / "compiled")
    first = cache / "compiled" / WEIGHTS
    assert load_file(first).keys() == network().state_dict().keys()
    for compiled in (False, True):
        _, sink = run_local(job(RING, init_from=str(first), **quick), kept(compiled), cache / str(compiled))
        told = next(data for kind, data in sink.events if kind == "weights.loaded")
        assert told["taken"] == len(network().state_dict())
        assert told["not_taken"].startswith("optimizers,"), "nothing of the model"
