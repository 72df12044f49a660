"""The step benchmark's two sides, for real: sessions over gloo without Ray, and DDP, taking turns."""

from pathlib import Path
from statistics import median

import pytest

from ringleader.bench.broken import PeerFailed
from ringleader.bench.processes.children import Child
from ringleader.bench.processes.gate import WARM_STEPS, Side, court
from ringleader.bench.training.optim import PLAIN
from ringleader.bench.training.step import DDP, HARNESS

BLOCK_STEPS = 6


def test_sides_with_and_without_a_server_measure_by_turns_and_leave_no_process_behind() -> None:
    common = ["--workload=digits", f"--block-steps={BLOCK_STEPS}"]
    ours = [*common, "--shards=2"]
    sides = [
        Side("ours", HARNESS, ours),
        Side("server", HARNESS, [*ours, "--servers=1"], servers=1),
        Side("ddp", DDP, common),
    ]
    with court(sides, 2, 90) as opened:
        blocks = [(side, opened.block(side, 60)) for _ in range(2) for side in ("ours", "server", "ddp")]
        said = opened.finish(60)
        pids = [child.pid for children in opened._children.values() for child in children]
    assert all(len(steps) == BLOCK_STEPS - WARM_STEPS for _, steps in blocks)
    assert all(0 < median(steps) < 10 for _, steps in blocks)
    assert said["ours"][0]["steps"] > 2 * BLOCK_STEPS
    assert said["server"][0]["steps"] > 2 * BLOCK_STEPS
    assert said["ddp"][0]["bucket_mb"] in {1, 5, 25, 100}
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_session_of_one_worker_measures_beside_a_loop_in_plain_torch() -> None:
    common = ["--workload=digits", f"--block-steps={BLOCK_STEPS}"]
    with court(
        [Side("ours", HARNESS, [*common, "--shards=1"]), Side("plain", PLAIN, common)], 1, 90
    ) as opened:
        blocks = [opened.block(side, 60) for _ in range(2) for side in ("ours", "plain")]
        opened.finish(60)
    assert all(len(steps) == BLOCK_STEPS - WARM_STEPS and 0 < median(steps) < 10 for steps in blocks)


def test_a_side_that_cannot_start_is_an_error_with_its_last_words() -> None:
    with (
        pytest.raises(PeerFailed, match="invalid int value"),
        court([Side("ours", HARNESS, ["--workload=digits", "--shards=many"])], 1, 60),
    ):
        pytest.fail("it started")


def test_a_child_that_hangs_is_ended_with_its_group() -> None:
    with Child("http.server", ["--bind", "127.0.0.1", "0"]) as child:
        with pytest.raises(PeerFailed, match=r"did not end within 0\.2 s"):
            child.answers(0.2)
        pid = child.pid
    assert not Path(f"/proc/{pid}").exists()
