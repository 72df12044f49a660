"""Members with a CUDA device each, as many as there are devices: one is enough for sums, a loss needs two."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rooms import open_room

from ringleader.train.between_calls.boundaries import CallBoundary
from ringleader.train.state.parameters.tensor_fingerprint import fingerprint
from ringleader.train.state.training_state import TrainingState

MEMBER = Path(__file__).parent / "gpu_member.py"
DEADLINE_S = 100

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def said() -> list[dict]:
    """The members' answers, by rank."""
    size = torch.cuda.device_count()
    store = open_room()
    members = [
        subprocess.Popen(
            [sys.executable, MEMBER, str(rank), str(size), str(store.port)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        return [json.loads(member.communicate(timeout=DEADLINE_S)[0].splitlines()[-1]) for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait()


def test_sums_stay_on_the_devices(said):
    size = len(said)
    assert [answer["native"] for answer in said] == [[size * (size + 1) / 2]] * size
    assert len({answer["canonical"] for answer in said}) == 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_lost_member_ends_the_waits_of_the_others(said):
    for survivor in said[:-1]:
        assert survivor["broken"]
        assert survivor["took_s"] < 2 * 5.0  # the deadline of a wait, and the way out of it


def test_bits_on_a_device_have_the_fingerprint_that_they_have_in_memory():
    for size in (3, 1 << 20):
        values = torch.randn(size)
        assert fingerprint(values.cuda()) == fingerprint(values)


def test_what_a_boundary_puts_back_lies_on_the_device_of_its_weights():
    held, net = TrainingState(), torch.nn.Linear(4, 4).cuda()
    held.models.append(net)
    optimizer = torch.optim.Adam(net.parameters())
    held.add_optimizer(optimizer, None)
    net(torch.ones(1, 4, device="cuda")).sum().backward()
    optimizer.step()
    boundary = CallBoundary.of(held)
    boundary.keep_tensors(held, "models")
    given = CallBoundary.of_plain(
        torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, boundary.plain())
    )
    optimizer.state.clear()
    given.put_back(held)
    assert {state["exp_avg"].device.type for state in optimizer.state.values()} == {"cuda"}
    optimizer.step()
