"""Rows a second of mosaicml-streaming over the rows of Parquet files, written as MDS and shuffled.

Run as a file, by the Python of an environment with `mosaicml-streaming`, `torch` and `pyarrow`, in which nothing of
Ringleader is: it asks for versions of numpy and transformers that cannot live beside ours.
"""

import argparse
import json
import tempfile
from pathlib import Path
from time import perf_counter

import pyarrow.parquet as pq
import torch
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--runs", type=int, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mds", ignore_cleanup_errors=True) as place:
        write(Path(asked.folder), place)
        rows = StreamingDataset(local=place, shuffle=True, batch_size=asked.batch)
        for _ in range(asked.runs):
            print(json.dumps({"rows_per_s": read(rows, asked.batch, asked.seconds)}), flush=True)


def write(folder: Path, place: str) -> None:
    """Write all rows of a folder's files, not compressed: nothing is unpacked while they are read."""
    files = sorted(folder.glob("*.parquet"))
    length = len(pq.ParquetFile(files[0]).read_row_group(0, ["tokens"])[0][0])
    with MDSWriter(out=place, columns={"tokens": f"ndarray:int32:{length}", "id": "int"}) as out:
        for file in files:
            table = pq.read_table(file)
            tokens = table["tokens"].combine_chunks().flatten().to_numpy().reshape(-1, length)
            for row, number in zip(tokens, table["id"].to_pylist(), strict=True):
                out.write({"tokens": row, "id": number})


def read(rows: StreamingDataset, batch: int, seconds: float) -> float:
    """Behind the first batch, for some seconds or to the end."""
    batches = iter(DataLoader(rows, batch_size=batch))
    next(batches)
    count, since = 0, perf_counter()
    for each in batches:
        count += len(each["id"])
        if perf_counter() - since > seconds:
            break
    return count / (perf_counter() - since)


if __name__ == "__main__":
    main()
