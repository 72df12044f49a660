"""Rows a second of Ray Data over shuffled Parquet, on a cluster of its own: `python -m ringleader.bench.peers.ray_data
--folder=…`."""

import json
import os
import tempfile
from time import perf_counter

import ray

from ringleader.bench.processes.children import child_parser, die_with_parent


def main() -> None:
    die_with_parent()
    asked = child_parser(texts=["folder"], numbers=["batch", "buffer", "seconds"]).parse_args()
    # Ray opens its folder to everybody: it lies in one that is nobody else's.
    with tempfile.TemporaryDirectory(prefix="rd", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, _temp_dir=f"{folder}/ray"
        )
        try:
            print(
                json.dumps({"rows_per_s": read(asked.folder, asked.batch, asked.buffer, asked.seconds)}),
                flush=True,
            )
        finally:
            ray.shutdown()


def read(folder: str, batch: int, buffer: int, seconds: float) -> float:
    """Behind the first batch, for some seconds or to the end."""
    rows = ray.data.read_parquet(folder, shuffle="files")
    batches = iter(rows.iter_torch_batches(batch_size=batch, local_shuffle_buffer_size=buffer))
    next(batches)
    count, since = 0, perf_counter()
    for each in batches:
        count += len(each["id"])
        if perf_counter() - since > seconds:
            break
    return count / (perf_counter() - since)


if __name__ == "__main__":
    main()
