"""Submit → first committed step on a cluster without nodes, which Ray's own autoscaler starts for the job."""

import time
from collections.abc import Iterator

from ringleader.bench.elasticity.autoscaled import autoscaled
from ringleader.bench.elasticity.commits import wait_for
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.processes.children import Child
from ringleader.bench.registry import Wish
from ringleader.cli.stack.stack import ForeignCluster

CASES = ("from-zero",)
TARGET = Target("ringleader", "<=", 3.0)
NODE_CPUS = 3
# Short, so that the nodes are gone again before the next submit.
IDLE_S, COOL_DOWN_S = 2.0, 1.0
CONNECT_S, DEADLINE_S = 60.0, 120.0
SETTINGS = (
    "from-zero: MLP 64-256-256-10, 3 workers; from the SDK's submit to the first committed step, less the time from "
    "the demand's publication to the first node that Ray lists; a head without CPUs, Ray's autoscaler (looks once a "
    "second) with nodes of 3 CPUs that `ray start` begins on this machine, with RAY_START_HOOK as infra/README.md has "
    "it; all nodes are gone again before the next submit"
)


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds from submit to the first step. Raises PeerFailed where nodes do not come or do not go."""
    runs = 6 if wish.full else 3
    bound = {
        "RINGLEADER_AUTOSCALE_CPUS": str(NODE_CPUS),
        "RINGLEADER_AUTOSCALE_COOL_DOWN_S": str(COOL_DOWN_S),
    }
    with (
        autoscaled(node_cpus=NODE_CPUS, max_nodes=1, idle_s=IDLE_S) as cloud,
        stack.up(cluster=ForeignCluster(cloud.address, cloud.token), settings=bound) as opened,
        Child("ringleader.bench.processes.nodes_watch", [cloud.address], cloud.environ) as watch,
    ):
        watch.answer(0, CONNECT_S)
        ours = [_submit(opened, watch, number) for number in range(runs)]
    yield Figure(case="from-zero", unit="s", better="lower", ours=ours, target=TARGET, settings=SETTINGS)


def _submit(opened: stack.BenchStack, watch: Child, number: int) -> float:
    """Seconds to the first commit, less the node's own start. Returns when the job has ended and the nodes are gone."""
    started = time.monotonic()
    job = opened.submit(f"from-zero-{number}", workload="noise", epochs=1, workers={"min": 3, "max": 3})

    def first_commit() -> float | None:
        commits = job.commits.all
        return commits[0].at if commits else None

    first = wait_for("a first step", first_commit, DEADLINE_S, watch.check)
    # The watch prints one line when it is connected and three for each growth: asked, there, gone.
    asked, there = (
        watch.answer(3 * number + 1 + place, DEADLINE_S)[what]
        for place, what in enumerate(("asked", "there"))
    )
    job.job.wait(timeout=DEADLINE_S)
    watch.answer(3 * number + 3, DEADLINE_S)
    return float(first - started - (there - asked))
