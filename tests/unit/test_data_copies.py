"""Replicated data: one whole copy of every file on a node, for all workers that are there."""

import fcntl
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import ringleader
from ringleader.data import CopyFailed, ParquetDataset
from ringleader.data.copies import IN_USE, NodeCopies, remove_unused
from ringleader.data.inside import read_copies

ROWS = 20
GUARD_S = 30.0


def write(path: Path, first: int = 0) -> Path:
    pq.write_table(pa.table({"n": list(range(first, first + ROWS))}), path, row_group_size=6)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    write(folder / "a.parquet")
    write(folder / "b.parquet", first=ROWS)
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return tmp_path / "scratch" / "job-a1" / "node"


def numbers(dataset: Any) -> list[int]:
    return [dataset[row]["n"] for row in range(len(dataset))]


def copies_in(node: Path) -> list[Path]:
    return sorted(node.glob("*.parquet"))


@pytest.mark.parametrize("uri", [False, True], ids=["path", "uri"])
def test_a_replicated_set_is_read_from_its_copies_alone(uri: bool, source: Path, node: Path) -> None:
    dataset = ParquetDataset(f"file://{source}" if uri else source)
    dataset.read_copies(NodeCopies(node))
    for file in source.glob("*.parquet"):
        file.unlink()
    assert numbers(dataset) == list(range(2 * ROWS))
    assert len(copies_in(node)) == 2
    assert not list(node.glob("*.partial"))


def test_workers_of_a_node_share_one_copy_of_each_file(source: Path, node: Path) -> None:
    def start(_: int) -> set[int]:
        ParquetDataset(source).read_copies(NodeCopies(node))
        return {path.stat().st_ino for path in copies_in(node)}

    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(start, range(4)))
    assert [len(inodes) for inodes in seen] == [2] * 4
    assert len(set.union(*seen)) == 2


def test_what_a_killed_worker_left_is_no_copy(source: Path, node: Path) -> None:
    copies = NodeCopies(node)
    (name,) = {Path(copies.of(str(source / "a.parquet")))}
    name.rename(name.with_suffix(".partial"))
    os.truncate(name.with_suffix(".partial"), 40)
    dataset = ParquetDataset(source / "a.parquet")
    dataset.read_copies(copies)
    assert numbers(dataset) == list(range(ROWS))
    assert copies_in(node) == [name]


def test_a_worker_does_not_wait_for_ever_for_the_copy_of_another(source: Path, node: Path) -> None:
    copies = NodeCopies(node, stalled_s=0.1)
    name = Path(copies.of(str(source / "a.parquet")))
    with name.with_suffix(".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(
            CopyFailed,
            match=r"a\.parquet .* another worker is copying it, but has made no progress for 0.1 s",
        ):
            copies.of(str(source / "a.parquet"))


def test_a_source_that_changed_meanwhile_is_named(source: Path, node: Path) -> None:
    first, second = ParquetDataset(source / "a.parquet"), ParquetDataset(source / "a.parquet")
    first.read_copies(NodeCopies(node))
    pq.write_table(pa.table({"n": [1]}), source / "a.parquet")
    with pytest.raises(CopyFailed, match=r"a\.parquet .* bytes now, but had"):
        second.read_copies(NodeCopies(node))
    other = ParquetDataset(write(source / "c.parquet"))
    write(source / "c.parquet", first=7)
    with pytest.raises(CopyFailed, match=r"c\.parquet .* has changed since this worker opened it"):
        other.read_copies(NodeCopies(node))


def test_a_source_that_cannot_be_read_is_named(source: Path, node: Path) -> None:
    dataset = ParquetDataset(source / "a.parquet")
    (source / "a.parquet").unlink()
    with pytest.raises(CopyFailed, match=r"replicated, but .*a\.parquet cannot be copied"):
        dataset.read_copies(NodeCopies(node))


class Wrapped(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.parts = {"rows": ParquetDataset(path)}

    def __len__(self) -> int:
        return len(self.parts["rows"])

    def __getitem__(self, row: int) -> Any:
        return self.parts["rows"][row]


def test_sets_inside_a_dataset_are_found(source: Path, node: Path) -> None:
    inside = Subset(
        ConcatDataset([Wrapped(source / "a.parquet"), ParquetDataset(source / "b.parquet")]), [0, 39]
    )
    assert read_copies(inside, NodeCopies(node))
    assert len(copies_in(node)) == 2
    for file in source.glob("*.parquet"):
        file.unlink()
    assert numbers(inside) == [0, 39]


def test_what_lies_in_the_working_directory_is_not_copied(
    source: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    assert NodeCopies(node).of("a.parquet") == "a.parquet"
    assert copies_in(node) == []


def test_training_on_what_reads_no_file_is_refused_where_data_is_replicated(tmp_path: Path) -> None:
    spec = {"name": "a", "entrypoint": "m:f", "data": {"distribution": "replicated"}}
    with (
        ringleader.local_session(spec, tmp_path) as session,
        pytest.raises(TypeError, match=r"replicated, but TensorDataset has no files to copy.*ParquetDataset"),
    ):
        session.batches(TensorDataset(torch.zeros(4)))


def use(node: Path, pipe: Connection) -> None:
    """A worker that is there until it is killed."""
    NodeCopies(node)
    pipe.send("using")
    pipe.recv()


@pytest.fixture
def worker(node: Path) -> Iterator[Any]:
    forked = multiprocessing.get_context("fork")  # it only takes a lock
    here, there = forked.Pipe()
    process = forked.Process(target=use, args=(node, there))
    process.start()
    assert here.poll(GUARD_S)
    yield process
    process.kill()
    process.join(GUARD_S)


def test_the_last_worker_of_a_node_takes_its_copies_along_also_where_others_were_killed(
    node: Path, source: Path, worker: Any
) -> None:
    NodeCopies(node).of(str(source / "a.parquet"))
    remove_unused(node)
    assert len(copies_in(node)) == 1
    worker.kill()
    worker.join(GUARD_S)
    remove_unused(node)
    assert list(node.parent.parent.iterdir()) == []


def test_who_comes_next_removes_what_killed_jobs_left_and_nothing_that_is_in_use(
    node: Path, worker: Any, tmp_path: Path
) -> None:
    left = node.parent.with_name("job-a0") / "node"
    left.mkdir(parents=True)
    (left / IN_USE).touch()
    NodeCopies(node.parent.with_name("other-a1") / "node")
    assert not left.exists()
    assert node.exists()


def test_a_folder_of_somebody_else_is_refused(node: Path, tmp_path: Path) -> None:
    node.parent.parent.symlink_to(tmp_path)
    with pytest.raises(CopyFailed, match="belongs to another account"):
        NodeCopies(node)
