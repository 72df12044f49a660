"""What sampling of system metrics costs: processor time of the supervisor's sampler beside a job of four workers."""

import time
from collections.abc import Iterator, Mapping

from ringleader.bench.broken import BrokenPromise
from ringleader.bench.elasticity.commits import wait_for
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes import stack
from ringleader.bench.registry import Wish
from ringleader.client import Worker
from ringleader.runtime.messages import ProcessIdentity
from ringleader.runtime.nodes.node_use import NodeReading, read_node
from ringleader.runtime.supervisor.system_sampler import EVERY_S, SystemSampler
from ringleader.text import utf8_json
from ringleader.wire.system import SystemSample

SAMPLING = "sampling"
CASES = (SAMPLING,)
WORKERS, LOADERS, SAMPLES = 4, 1, 13
READY_S = 240.0
SHARE = Target("ringleader", "<=", 0.005)


def run(wish: Wish) -> Iterator[Figure]:
    """Measure the case if it is wanted. Raises BrokenPromise where the samples lack a worker."""
    if not wish.wants(SAMPLING):
        return
    with stack.up(num_cpus=WORKERS) as opened:
        size = {"min": WORKERS, "max": WORKERS}
        job = opened.submit("sampled", workload="noise", epochs=100_000, workers=size, loader_workers=LOADERS)

        def trains() -> list[Worker] | None:
            found = job.job.workers()
            return found if len(found) == WORKERS and job.job.refresh().view.progress.step > 0 else None

        workers = wait_for("four workers at work", trains, READY_S, job.check)
        shares = [_share(workers) for _ in range(3 if wish.full else 1)]
        stored = {series.id for series in job.job.system() if series.kind == "worker"}
        job.job.cancel()
    if stored != {worker.id for worker in workers}:
        raise BrokenPromise(f"the control plane has samples of {sorted(stored)} alone.")
    yield Figure(
        case=SAMPLING,
        unit="of a core",
        better="lower",
        ours=shares,
        target=SHARE,
        settings=f"{SAMPLING}: {WORKERS} workers that train, each with {LOADERS} loader; processor time of what the "
        f"supervisor's thread does, reading and encoding, over {SAMPLES - 1} samples {EVERY_S:g} s apart",
    )


def _share(workers: list[Worker]) -> float:
    """The share of a core that the sampler takes; the first sample, which loads what it needs, is not counted."""
    identities = {worker.id: ProcessIdentity(worker.pid, worker.node, "") for worker in workers}
    taken: list[SystemSample] = []

    def read(asked: Mapping[str, Mapping[str, int]]) -> dict[str, NodeReading]:
        return {node: read_node([*pids.values()]) for node, pids in asked.items()}

    def put(sample: SystemSample) -> None:
        taken.append(sample)
        utf8_json([sample.model_dump(mode="json")])

    sampler = SystemSampler(lambda: identities, read, put)
    sampler.sample()
    began, before = time.monotonic(), time.thread_time()
    for number in range(1, SAMPLES):
        time.sleep(max(0.0, began + number * EVERY_S - time.monotonic()))
        sampler.sample()
    spent = time.thread_time() - before
    told = {use.id for use in taken[-1].uses if use.kind == "worker"}
    if told != identities.keys():
        raise BrokenPromise(f"the samples tell of {sorted(told)}, and {sorted(identities)} train.")
    return spent / (time.monotonic() - began)
