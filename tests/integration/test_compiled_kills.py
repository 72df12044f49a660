"""Compiled models through kills and joins: the kernels are the same, whichever worker compiles them, and when."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_compiled import CPU, cache, network, train
from test_leaving import RING, job
from threaded_cast import ThreadedCast

from ringleader.train.device.compiled_forward import CACHE, compile_forward
from ringleader.train.local import run_local

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
