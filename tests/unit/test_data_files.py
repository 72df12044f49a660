"""Files behind a data set: blocks read once and ahead of time, few files open, columns as tensors, bad files named."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import default_collate
from waiting import wait_for

from ringleader.data import BlockUnreadable, FileDataset, ParquetDataset, RowUnreadable
from ringleader.data.block_reader import BlockReader
from ringleader.data.inside import file_set
from ringleader.data.sources.open_files import OpenFiles
from ringleader.data.sources.parquet import ParquetSource
from ringleader.data.sources.source import Source
from ringleader.errors import DatasetUnsupported
from ringleader.train.rows.dataset_likeness import likeness
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.slices import Slice

BLOCKS, ROWS = 20, 10


class Numbers:
    """A source of numbers that counts what is read of it."""

    schema = pa.schema([("n", pa.int64())])
    digest = "00"

    def __init__(self, broken: int | None = None) -> None:
        self.block_rows = np.full(BLOCKS, ROWS)
        self.broken = broken
        self.read_blocks: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def read(self, block: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        assert self.gate.wait(20)
        self.read_blocks.append(block)
        if block == self.broken:
            raise BlockUnreadable(self.name(block), "it is torn")
        return pa.record_batch({"n": np.arange(block * ROWS, (block + 1) * ROWS)})

    def name(self, block: int) -> str:
        return f"numbers, block {block}"


def reader(source: Source, blocks: int) -> BlockReader:
    return BlockReader(source, ["n"], blocks * ROWS * 8)


def test_what_is_expected_is_read_ahead_as_far_as_there_is_room() -> None:
    source = Numbers()
    blocks = reader(source, 6)
    blocks.expect([3, 4], [5, 6, 7, 8, 9, 10])
    wait_for("blocks", lambda: len(source.read_blocks) >= 6 and not blocks._running, 20)
    assert sorted(source.read_blocks) == [3, 4, 5, 6, 7, 8]
    assert blocks.held == 6
    blocks.expect([5, 6], [7, 8, 9, 10])
    wait_for("blocks", lambda: len(source.read_blocks) >= 8 and not blocks._running, 20)
    assert sorted(source.read_blocks) == [3, 4, 5, 6, 7, 8, 9, 10]
    assert blocks.held == 6


def test_a_window_larger_than_the_cache_stays_and_nothing_is_read_ahead() -> None:
    source = Numbers()
    blocks = reader(source, 2)
    blocks.expect([0, 1, 2, 3], [4, 5])
    for _ in range(3):
        for block in (0, 1, 2, 3):
            assert blocks.read(block).batch.column("n")[0].as_py() == block * ROWS
    assert sorted(source.read_blocks) == [0, 1, 2, 3]
    blocks.expect([], [])
    blocks.read(9)
    assert blocks.held == 2


def test_two_threads_that_want_a_block_read_it_once() -> None:
    source = Numbers()
    source.gate.clear()
    blocks = reader(source, 20)
    blocks.expect([7], [])
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(blocks.read, 7) for _ in range(4)]
        source.gate.set()
        assert {f.result(20).batch["n"][0].as_py() for f in found} == {70}
    assert source.read_blocks == [7]


def test_an_error_ahead_of_time_reaches_whoever_asks_for_the_block() -> None:
    source = Numbers(broken=5)
    blocks = reader(source, 20)
    blocks.expect([4], [5, 6])
    wait_for("blocks", lambda: {4, 5, 6} <= set(source.read_blocks), 20)
    assert blocks.read(6).batch.num_rows == ROWS
    with pytest.raises(BlockUnreadable, match="numbers, block 5 cannot be read: it is torn"):
        blocks.read(5)


def test_any_source_is_a_data_set() -> None:
    dataset = FileDataset(Numbers(), cache_bytes=1)
    assert isinstance(Numbers(), Source)
    assert isinstance(ParquetSource, type)
    assert [dataset[row]["n"] for row in (0, 199, -1, 57)] == [0, 199, 199, 57]
    assert dataset.batch([199, 3, 3, -200])["n"].tolist() == [199, 3, 3, 0]
    with pytest.raises(IndexError, match="row 200 of a dataset with 200 rows"):
        dataset.batch([200])


class Wrapped:
    def __init__(self, *sets: FileDataset) -> None:
        self.sets = sets

    def __len__(self) -> int:
        return sum(map(len, self.sets))

    def __getitem__(self, row: int) -> object:
        return self.sets[0][row]


def test_the_files_of_a_data_set_are_found_where_they_give_it_all_its_rows() -> None:
    one, other = FileDataset(Numbers()), FileDataset(Numbers())
    assert file_set(one) is one
    assert file_set(Wrapped(one)) is one
    assert file_set(Wrapped(one, other)) is None
    assert file_set(torch.utils.data.Subset(one, [1, 2])) is None


class File:
    def __init__(self, number: int, still_open: set["File"]) -> None:
        self.number, self.still_open = number, still_open
        still_open.add(self)

    def close(self) -> None:
        self.still_open.remove(self)


def test_few_files_are_open_at_once_those_used_last() -> None:
    still_open: set[File] = set()
    files = OpenFiles(lambda number: File(number, still_open), most=3)
    for number in (0, 1, 2, 0, 3):
        with files.use(number):
            assert len(still_open) <= 3
    assert {file.number for file in still_open} == {0, 2, 3}
    with files.use(3) as one, files.use(3) as two:
        assert one is not two
    assert len([file for file in still_open if file.number == 3]) == 1


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_files_are_read_with_few_descriptors(tmp_path: Path) -> None:
    for number in range(60):
        pq.write_table(pa.table({"n": [number] * 3}), tmp_path / f"{number:03d}.parquet")
    before = descriptors()
    dataset = ParquetDataset(tmp_path)
    assert [dataset[row]["n"] for row in range(180)] == [row // 3 for row in range(180)]
    assert descriptors() - before <= 32


KINDS = {
    **{
        str(kind): pa.array([0, 1, 7, 100], kind) for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16())
    },
    **{str(kind): pa.array([0, 1, 7, 2**31 - 1], kind) for kind in (pa.int32(), pa.uint32(), pa.int64())},
    "uint64": pa.array([0, 1, 2, 2**63 - 1], pa.uint64()),
    "bool": pa.array([True, False, False, True]),
    "float16": pa.array([0.5, -0.0, np.inf, np.nan], pa.float16()),
    "float32": pa.array([0.1, -0.0, np.inf, np.nan], pa.float32()),
    "float64": pa.array([0.1, -0.0, -np.inf, 5e-324], pa.float64()),
    "text": pa.array(["a", "", "ü", "b"]),
    "bytes": pa.array([b"a", b"", b"b", b"\0"]),
    "lists": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32())),
    "wide lists": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.large_list(pa.int64())),
    "fixed lists": pa.array([[0.1, 2], [3, -0.0], [5, 6], [7, 8]], pa.list_(pa.float32(), 2)),
    "uint16 lists": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.uint16(), 2)),
    "bool lists": pa.array([[True], [False], [True], [False]], pa.list_(pa.bool_(), 1)),
    "text lists": pa.array([["a"], ["b"], ["c"], ["d"]]),
    "empty lists": pa.array([[], [], [], []], pa.list_(pa.int16())),
    "planes": pa.array([[[1, 2], [3, 4]]] * 4, pa.list_(pa.list_(pa.uint8(), 2), 2)),
    "ragged planes": pa.array([[[1, 2], [3, 4]]] * 4, pa.list_(pa.list_(pa.int64()))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_by_column_is_what_collating_rows_gives(kind: str, tmp_path: Path) -> None:
    column = pa.concat_arrays([KINDS[kind]] * 3)
    pq.write_table(pa.table({"x": column, "row": range(12)}), tmp_path / "a.parquet", row_group_size=5)
    dataset = ParquetDataset(tmp_path)
    rows = [11, 0, 4, 4, 5, 9, 1]
    ours, theirs = dataset.batch(rows), default_collate(dataset.__getitems__(rows))
    assert list(ours) == list(theirs)
    assert ours["row"].tolist() == rows
    if not isinstance(theirs["x"], torch.Tensor):
        assert type(ours["x"]) is type(theirs["x"])
        assert str(ours["x"]) == str(theirs["x"])
        return
    assert (ours["x"].dtype, ours["x"].shape) == (theirs["x"].dtype, theirs["x"].shape)
    assert ours["x"].is_contiguous()
    # As bytes: no number equals NaN, and zero equals minus zero.
    assert ours["x"].numpy().tobytes() == theirs["x"].numpy().tobytes()
    ours["x"].zero_()  # its memory is its own
    assert dataset.batch(rows)["x"].numpy().tobytes() == theirs["x"].numpy().tobytes()


def test_rows_without_a_value_or_of_different_lengths_are_refused_as_rows_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, None, 3])}), tmp_path / "null.parquet")
    with pytest.raises(RowUnreadable, match="column 'x' of row 1 cannot be read: it is null"):
        ParquetDataset(tmp_path / "null.parquet").batch([0, 1])
    pq.write_table(pa.table({"x": [[1], [1, 2]]}), tmp_path / "ragged.parquet")
    ragged = ParquetDataset(tmp_path / "ragged.parquet")
    with pytest.raises(DatasetUnsupported, match=r"'x' has the shapes \(1,\) and \(2,\)"):
        ragged.batch([0, 1])
    assert ragged.batch([1, 1])["x"].tolist() == [[1, 2], [1, 2]]


class Doubled(ParquetDataset):
    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, object]]:
        return [{"x": 2 * row["x"]} for row in super().__getitems__(rows)]


def test_a_class_that_makes_other_rows_keeps_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "a.parquet")
    assert Doubled(tmp_path / "a.parquet").batch([0, 2])["x"].tolist() == [2, 6]


def written(folder: Path, name: str, rows: int = 3000) -> Path:
    path = folder / name
    numbers = np.random.default_rng(0).integers(0, 1 << 40, rows)
    pq.write_table(pa.table({"n": numbers}), path, row_group_size=1000, use_dictionary=False)
    return path


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet")
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(BlockUnreadable, match=r"a\.parquet cannot be read"):
        ParquetDataset(path)
    path.write_bytes(b"")
    with pytest.raises(BlockUnreadable, match=r"a\.parquet cannot be read"):
        ParquetDataset(path)


def test_a_damaged_row_group_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet")
    content = bytearray(path.read_bytes())
    middle = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(content)
    dataset = ParquetDataset(path)
    assert dataset.batch([0, 2999])["n"].shape == (2,)
    with pytest.raises(BlockUnreadable, match=r"a\.parquet, row group 1 cannot be read"):
        dataset.batch([1500])
    with pytest.raises(BlockUnreadable, match=r"a\.parquet, row group 1 cannot be read"):
        dataset[1500]


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet")
    dataset = ParquetDataset(path, cache_bytes=1)
    first = dataset[0]
    os.utime(path)  # touched: the same bytes
    assert dataset[0] == first
    written(tmp_path, "a.parquet", rows=2999)
    with pytest.raises(BlockUnreadable, match=r"row group 2 cannot be read: the file has changed"):
        dataset[2500]
    path.unlink()
    with pytest.raises(BlockUnreadable, match=r"row group 1 cannot be read: the file has changed"):
        dataset[1500]


def test_files_of_other_columns_name_the_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), tmp_path / "b.parquet")
    with pytest.raises(
        ValueError,
        match=r"b\.parquet differ from .*a\.parquet: 'n' is int32 there, and int64 here; write them alike",
    ):
        ParquetDataset(tmp_path)


def test_files_without_rows_are_refused_and_empty_row_groups_left_out(tmp_path: Path) -> None:
    empty = pa.table({"n": pa.array([], pa.int64())})
    pq.write_table(empty, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"there are no rows in .*a\.parquet"):
        ParquetDataset(tmp_path)
    pq.write_table(pa.table({"n": [5]}), tmp_path / "b.parquet")
    assert len(ParquetDataset(tmp_path)) == 1
    assert ParquetDataset(tmp_path)[0] == {"n": 5}


def test_processes_that_load_one_set_of_files_are_not_taken_for_those_of_another(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 50)):
        pq.write_table(pa.table({"n": range(first, first + 3)}), tmp_path / f"{name}.parquet")
    one, other = (ParquetDataset(tmp_path / f"{name}.parquet") for name in "ab")
    assert likeness(one) == likeness(ParquetDataset(tmp_path / "a.parquet"))
    assert likeness(one) != likeness(other)
    loaders = LoaderProcesses(0)
    found = [
        next(loaders.load(call, data, iter([Slice(("step", 0, 0), 0, np.arange(3))]), None, 1))["n"].tolist()
        for call, data in enumerate((one, other))
    ]
    loaders.close()
    assert found == [[0, 1, 2], [50, 51, 52]]


def test_the_digest_tells_files_apart_by_what_is_in_them(tmp_path: Path) -> None:
    one = ParquetSource(written(tmp_path, "a.parquet")).digest
    assert ParquetSource(written(tmp_path, "b.parquet")).digest == one
    assert ParquetSource(written(tmp_path, "b.parquet", rows=2999)).digest != one
    assert ParquetSource([tmp_path / "a.parquet"] * 2).digest != one
