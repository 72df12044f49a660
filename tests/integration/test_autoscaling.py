"""Ray's own autoscaler over nodes of this machine: a job brings them, the queue's end sends them off."""

import pytest
from waiting import wait_for

from ringleader.bench import stack
from ringleader.bench.autoscaled import autoscaled
from ringleader.cli.stack.stack import Cluster
from ringleader.client import Job

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
        stack.up(cluster=Cluster(cloud.address, cloud.token), settings=BOUND) as here,
    ):

        def cpus() -> float:
            return float(here.client.cluster()["cpus"])

        assert cpus() == 0
        first = here.submit("first", workload="noise", epochs=1, workers={"min": 2, "max": 2}).job
        told = wait_for("the reason", lambda: _code(first) or (first.state != "queued" and first.state))
        assert told == "waiting_for_nodes", "no node comes within a pass of the scheduler"
        assert first.wait(timeout=DEADLINE_S).steps > 0
        assert first.view.attempt == 1
        wait_for("the end of the nodes", lambda: cpus() == 0, DEADLINE_S)

        big = here.submit("big", workload="noise", epochs=1, workers={"min": 3, "max": 3}).job
        wait_for("what cannot be had", lambda: _code(big) == "nodes_unavailable", DEADLINE_S)
        big.cancel()
        wait_for("the end of the nodes", lambda: cpus() == 0, DEADLINE_S)


def _code(job: Job) -> str:
    why = job.refresh().view.pending_reason
    return why.code if why else ""
