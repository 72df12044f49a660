"""Members with a CUDA device each, as many as there are devices: one is enough for sums, a loss needs two."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

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
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
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
