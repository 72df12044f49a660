"""Ray's own autoscaler over nodes of this machine: a job brings them, the queue's end sends them off."""

import os
import signal
from pathlib import Path

import pytest
from waiting import wait_for

from ringleader.bench.elasticity.autoscaled import autoscaled
from ringleader.bench.processes import stack
from ringleader.cli.stack.stack import ForeignCluster
from ringleader.client import Job
from ringleader.runtime.nodes.fork_worker import forks

BOUND = {
    "RINGLEADER_AUTOSCALE_CPUS": "4",
    "RINGLEADER_AUTOSCALE_COOL_DOWN_S": "1",
    "RINGLEADER_AUTOSCALE_PATIENCE_S": "8",
}
DEADLINE_S = 120


@pytest.mark.timeout(400)
def test_nodes_come_for_a_job_go_with_the_queue_and_what_cannot_be_had_is_said() -> None:
    with (
        autoscaled(node_cpus=2, max_nodes=1, idle_s=2) as cloud,
        stack.up(cluster=ForeignCluster(cloud.address, cloud.token), settings=BOUND) as here,
    ):

        def cpus() -> float:
            return float(here.client.cluster()["cpus"])

        assert cpus() == 0
        first = here.submit("first", workload="noise", epochs=1000, workers={"min": 2, "max": 2}).job
        told = wait_for("the reason", lambda: _code(first) or (first.state != "queued" and first.state))
        assert told == "waiting_for_nodes", "no node comes within a pass of the scheduler"
        ready = _ready(wait_for("both workers", lambda: _joined(first, 2), DEADLINE_S))
        os.kill(_joined(first, 2)[0], signal.SIGKILL)
        assert _ready(wait_for("a replacement", lambda: _joined(first, 3), DEADLINE_S)[2:]) == ready
        wait_for("a step", lambda: first.refresh().view.progress.step > 0, DEADLINE_S)
        assert first.view.attempt == 1
        first.cancel()
        wait_for("the end of the nodes", lambda: cpus() == 0, DEADLINE_S)
        wait_for("the end of what the node had ready", lambda: not [p for p in ready if _runs(p)])

        big = here.submit("big", workload="noise", epochs=1, workers={"min": 3, "max": 3}).job
        wait_for("what cannot be had", lambda: _code(big) == "nodes_unavailable", DEADLINE_S)
        big.cancel()
        wait_for("the end of the nodes", lambda: cpus() == 0, DEADLINE_S)


def _code(job: Job) -> str:
    why = job.refresh().view.pending_reason
    return why.code if why else ""


def _joined(job: Job, count: int) -> list[int]:
    """The processes of all that have joined, once they are so many."""
    joined = [int(event.data["pid"]) for event in job.events() if event.type == "worker.joined"]
    return joined if len(joined) >= count else []


def _ready(workers: list[int]) -> set[int]:
    """The zygotes of these processes, and what those are forks of: one of each, but where nothing is forked."""
    if not forks():
        return set()
    (zygote,) = {_parent(worker) for worker in workers}
    preloaded = _parent(zygote)
    assert "preload.py" in Path(f"/proc/{preloaded}/cmdline").read_text()
    return {zygote, preloaded}


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
