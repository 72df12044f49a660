"""What an attempt ends with where nobody disturbs it: the weights of one process, and each row once."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from integration.runtime_job import TRAIN, Run

from ringleader.train.local import run_local


def assert_bits_of_one_process(run: Run, outcome: dict[str, Any], folder: Path) -> None:
    """The weights of one process that nobody disturbed, and each row of the ledger once."""
    ledger = pq.read_table(outcome["result"]["ledger_uri"].removeprefix("file://"))
    assert sorted(ledger["row"].to_pylist()) == sorted(list(range(64)) * run.launch.spec.params["epochs"])
    program: dict[str, Any] = {}
    exec(TRAIN, program)  # the package's own source
    torch.set_num_threads(1)
    alone, _ = run_local(run.launch.spec, program["train"], folder)
    assert outcome["result"]["weights_sha256"] == alone.digest
