"""Reading shuffled Parquet that is larger than memory for it: rows a second, bytes decoded, the first batch, memory,
what shuffling by blocks costs in held-out loss, and pictures a second."""

import os
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ringleader.bench import peers
from ringleader.bench.broken import BrokenPromise
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import peer_answers
from ringleader.bench.reading import pictures
from ringleader.bench.reading.data_files import CountedSource, pass_over, slices_of, write_tokens
from ringleader.bench.reading.shuffle import shuffle_figures
from ringleader.bench.registry import Wish
from ringleader.data import FileDataset, ParquetDataset
from ringleader.data.sources.parquet import ParquetSource
from ringleader.elastic.plan import owned
from ringleader.spec.data import Data
from ringleader.train.rows.slices import load

BATCH, SHARDS = 256, 4
BLOCKS = Data(order="block")
FILES, GROUPS, GROUP_ROWS = 8, 50, 250
CACHE_BYTES = 64 << 20
SET = f"{FILES * GROUPS * GROUP_ROWS:,} rows of 2 KB, row groups of {GROUP_ROWS} rows, batches of {BATCH}, 1 thread"
SECONDS, RAY_DEADLINE_S = 3.0, 300.0
MOSAIC_PYTHON = "RINGLEADER_BENCH_MOSAIC_PYTHON"
"""The variable with the Python of an environment that has mosaicml-streaming, which cannot live beside us."""
ROWS_1E9, BLOCK_ROWS = 10**9, 10_000
WORLDS = (1, 3, 5)
CASES = (
    *("parquet-shuffled", "jpeg-224", "decoded-per-used", "first-batch", "row-1e9", "memory"),
    "shuffle-quality",
)


def run(wish: Wish) -> Iterator[Figure]:
    """All in this process, one after the other."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="ringleader-bench-") as place:
        tokens = Path(place) / "tokens"
        if wish.wants("parquet-shuffled") or wish.wants("memory"):
            write_tokens(tokens, files=FILES, groups=GROUPS, rows=GROUP_ROWS)
        if wish.wants("parquet-shuffled"):
            yield from _shuffled(tokens, Path(place), runs=5 if wish.full else 3)
        if wish.wants("jpeg-224"):
            images = pictures.write_pictures(Path(place) / "pictures.parquet", count=1024)
            yield _decoded_images(images, runs=5 if wish.full else 3)
        if wish.wants("decoded-per-used"):
            small = write_tokens(Path(place) / "small", files=4, groups=99, rows=50, tokens=64)
            yield from (_decoded(small, world) for world in WORLDS)
        if wish.wants("first-batch"):
            many = write_tokens(Path(place) / "many", files=1000, groups=10, rows=20, tokens=16)
            yield from _first_batch(many)
        if wish.wants("row-1e9"):
            yield from _billion()
        if wish.wants("memory"):
            yield _memory(tokens)
        if wish.wants("shuffle-quality"):
            yield from shuffle_figures(
                Path(place), seeds=range(wish.seed, wish.seed + (10 if wish.full else 5))
            )


def _shuffled(tokens: Path, place: Path, runs: int) -> Iterator[Figure]:
    """Rows a second by turns: ours by blocks, ours unshuffled, and torch over a table of `datasets`."""
    sides: dict[str, Callable[[], Iterable[Any]]] = {
        "blocks": lambda: _ours(tokens, BLOCKS),
        "unshuffled": lambda: _ours(tokens, None),
    }
    peer = _mapped(tokens, place)
    if peer is not None:
        sides["peer"] = peer
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        for name, make in sides.items():
            found[name].append(_rows_per_s(make()))
    yield Figure(
        "parquet-shuffled",
        "rows/s",
        "higher",
        found["blocks"],
        found.get("peer", ()),
        peer_name="torch DataLoader, datasets" if peer else None,
        target=Target("ratio", ">=", 1.0) if peer else None,
        settings=f"{SET}; cache of {CACHE_BYTES >> 20} MB"
        + ("" if peer else "; the package `datasets` is not installed: no peer"),
    )
    yield Figure(
        "parquet-shuffled-own",
        "rows/s",
        "higher",
        found["blocks"],
        found["unshuffled"],
        peer_name="itself, not shuffled",
        target=Target("ratio", ">=", 0.9),
    )
    yield _beside_ray_data(tokens, found["blocks"])
    yield beside_mosaic(tokens, found["blocks"], runs)


def _beside_ray_data(tokens: Path, ours: list[float]) -> Figure:
    """The same rows by Ray Data, which has all cores and a buffer of as many rows as our windows have."""
    buffer = SHARDS * BLOCKS.window * GROUP_ROWS
    numbers = {"batch": BATCH, "buffer": buffer, "seconds": int(SECONDS)}
    arguments = [f"--folder={tokens}", *(f"--{name}={value}" for name, value in numbers.items())]
    theirs = [
        a["rows_per_s"] for a in peer_answers("ringleader.bench.peers.ray_data", arguments, RAY_DEADLINE_S)
    ]
    return Figure(
        "parquet-shuffled-ray-data",
        "rows/s",
        "higher",
        ours,
        theirs,
        peer_name="Ray Data" if theirs else None,
        target=Target("ratio", ">=", 3.0),
        settings=f"Ray Data: files shuffled, and rows in a buffer of {buffer:,}, on all cores",
    )


def beside_mosaic(tokens: Path, ours: list[float], runs: int) -> Figure:
    """The same rows by mosaicml-streaming, in an environment of its own."""
    python = os.environ.get(MOSAIC_PYTHON, "")
    theirs: list[float] = []
    if python:
        numbers = {"batch": BATCH, "seconds": int(SECONDS), "runs": runs}
        arguments = [f"--folder={tokens}", *(f"--{name}={value}" for name, value in numbers.items())]
        # Without the folder of the file, or PYTHONPATH: what is there is for another Python.
        program = (python, "-I", str(Path(peers.__path__[0]) / "mosaic_streaming.py"))
        # Its failure is printed, and the figure stays without a comparison.
        answers = peer_answers("ringleader.bench.peers.mosaic_streaming", arguments, RAY_DEADLINE_S, program)
        theirs = [answer["rows_per_s"] for answer in answers]
    return Figure(
        "parquet-shuffled-mosaicml",
        "rows/s",
        "higher",
        ours,
        theirs,
        peer_name="mosaicml-streaming" if theirs else None,
        target=Target("ratio", ">=", 5.0) if theirs else None,
        settings="mosaicml-streaming: the rows as MDS, not compressed, shuffled by default (py1e), torch's DataLoader "
        "in one process" + ("" if python else f"; {MOSAIC_PYTHON} names no Python that has it: no peer"),
    )


def _decoded_images(images: Path, runs: int) -> Figure:
    """Pictures a second, by turns."""
    found: dict[str, list[float]] = {"ours": [], "torch": []}
    for _ in range(runs):
        found["ours"].append(_rows_per_s(pictures.ours(images)))
        found["torch"].append(_rows_per_s(pictures.torchs(images)))
    return Figure(
        "jpeg-224",
        "rows/s",
        "higher",
        found["ours"],
        found["torch"],
        peer_name="torch DataLoader, the same decoder, bytes in memory",
        target=Target("ratio", ">=", 0.95),
        settings=pictures.PICTURES,
    )


def _ours(tokens: Path, data: Data | None) -> Iterator[Any]:
    dataset = ParquetDataset(tokens, cache_bytes=CACHE_BYTES)
    epoch = pass_over(dataset.files().block_rows, batch=BATCH, shards=SHARDS, data=data)
    return load(dataset, slices_of(epoch, range(SHARDS)), seed=0, collate=None)


def _mapped(tokens: Path, place: Path) -> Callable[[], Iterable[Any]] | None:
    """torch's loader over the same rows in a memory-mapped table; None where `datasets` is not installed."""
    try:
        import datasets
    except ImportError:
        return None
    files = sorted(map(str, tokens.glob("*.parquet")))
    table = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(place / "hf"))
    rows = table.with_format("torch")
    return lambda: torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)


def _rows_per_s(batches: Iterable[Any]) -> float:
    """Behind the first batch, for some seconds or to the end."""
    left = iter(batches)
    next(left)
    rows, since = 0, perf_counter()
    for batch in left:
        rows += len(batch["id"])
        if perf_counter() - since > SECONDS:
            break
    return rows / (perf_counter() - since)


def _decoded(small: Path, world: int) -> Figure:
    """Bytes decoded in a pass by all workers together, over the bytes of all rows.

    Raises:
        BrokenPromise: a row came twice, or not at all.
    """
    shards, decoded = 2 * max(WORLDS), 0
    whole = ParquetSource(small)
    names = whole.schema.names
    used = sum(whole.read(block, names).nbytes for block in range(len(whole.block_rows)))
    seen = []
    for rank in range(world):
        source = CountedSource(whole)
        # No more than the windows of one worker's shards: a tenth of the set.
        dataset = FileDataset(source, cache_bytes=used // 10)
        epoch = pass_over(
            whole.block_rows, batch=100, shards=shards, data=Data(order="block", window_blocks=4)
        )
        for batch in load(dataset, slices_of(epoch, owned(rank, world, shards)), seed=0, collate=None):
            seen.append(batch["id"].numpy())
        decoded += sum(source.decoded_bytes)
    if not np.array_equal(np.sort(np.concatenate(seen)), np.arange(whole.block_rows.sum())):
        raise BrokenPromise("an epoch by blocks did not take each row once")
    return Figure(
        f"decoded-per-used-{world}",
        "bytes/byte",
        "lower",
        [decoded / used],
        target=Target("ringleader", "<=", 1.1),
        settings=f"{world} workers, L = {shards}, {len(whole.block_rows)} row groups, windows of 4",
    )


def _first_batch(many: Path) -> Iterator[Figure]:
    """Seconds from paths to a batch, and the descriptors that are open meanwhile at most."""
    with _watched(_descriptors) as opened:
        since = perf_counter()
        dataset = ParquetDataset(many)
        epoch = pass_over(dataset.files().block_rows, batch=BATCH, shards=SHARDS, data=BLOCKS)
        batches = load(dataset, slices_of(epoch, range(SHARDS)), seed=0, collate=None)
        next(batches)
        took = perf_counter() - since
        for _ in islice(batches, 200):
            pass
    settings = "1,000 files of 10 row groups: index, order, first batch"
    target = Target("ringleader", "<=", 0.5)
    yield Figure("first-batch", "s", "lower", [took], target=target, settings=settings)
    few = Target("ringleader", "<=", 64)
    yield Figure("first-batch-descriptors", "descriptors", "lower", [max(opened)], target=few)


@contextmanager
def _watched(measure: Callable[[], int]) -> Iterator[list[int]]:
    """Growth of a measure since the block began, looked at again and again."""
    before, found, over = measure(), [0], threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            found.append(measure() - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _billion() -> Iterator[Figure]:
    """Time and memory of a joiner or a resumed worker to find its rows deep in a pass over a billion."""
    blocks = np.full(ROWS_1E9 // BLOCK_ROWS, BLOCK_ROWS)
    for order in ("row", "block"):
        data = Data(order=order)
        took = []
        for _ in range(10):
            since = perf_counter()
            epoch = pass_over(blocks, batch=1024, shards=8, data=data)
            epoch.rows(epoch.steps - 3, 5)
            took.append(perf_counter() - since)
        tracemalloc.start()
        epoch = pass_over(blocks, batch=1024, shards=8, data=data)
        epoch.rows(epoch.steps - 3, 5)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        case = "row-1e9" if order == "row" else "row-1e9-block"
        quick, small = Target("ringleader", "<=", 0.01), Target("ringleader", "<=", 16e6)
        settings = f"order: {order}, a slice in a pass over 1e9 rows" + ", 1e5 blocks" * (order == "block")
        yield Figure(case, "s", "lower", took, target=quick, settings=settings)
        yield Figure(f"{case}-memory", "B", "lower", [peak], target=small)


def _memory(tokens: Path) -> Figure:
    """The most that Arrow holds while one shard of four is read by blocks: its cache, and two windows."""
    with _watched(pa.total_allocated_bytes) as held:
        dataset = ParquetDataset(tokens, cache_bytes=CACHE_BYTES)
        epoch = pass_over(dataset.files().block_rows, batch=BATCH, shards=SHARDS, data=BLOCKS)
        for _ in load(dataset, slices_of(epoch, [0]), seed=0, collate=None):
            pass
    block_bytes = GROUP_ROWS * (512 * 4 + 8)
    most = CACHE_BYTES + 2 * BLOCKS.window * block_bytes
    return Figure(
        "memory",
        "B",
        "lower",
        [max(held)],
        target=Target("ringleader", "<=", most),
        settings=f"cache of {CACHE_BYTES >> 20} MB and two windows of {BLOCKS.window * block_bytes / 1e6:.1f} MB",
    )
