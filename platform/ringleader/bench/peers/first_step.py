"""A Ray job's entrypoint beside ours: `python -m ringleader.bench.peers.first_step FOLDER` trains one step and ends.

One process, the whole batch, no cluster and no group: the quickest first step that an entrypoint can take.
"""

import sys
import time
from pathlib import Path

import torch

from ringleader.bench.elasticity.commits import CommitLog
from ringleader.bench.training.workloads import PAUSE_S, WORKLOADS


def take(folder: Path) -> None:
    """Commit step 0 of the workload that our own jobs train, and write it down in `folder`."""
    torch.set_num_threads(1)
    workload = WORKLOADS["noise"]
    rows, model = workload.rows(), workload.net()
    optimizer = workload.optimizer(model.parameters())
    log = CommitLog(folder)
    batch = slice(workload.global_batch)
    time.sleep(PAUSE_S)
    workload.loss(model(rows.x[batch]), rows.y[batch]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    log.committed(step=0, membership=1)
    log.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
