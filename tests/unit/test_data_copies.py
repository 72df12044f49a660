"""Replicated data: one whole copy of every file on a node, for all workers that are there."""

import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import ringleader
from ringleader.data import CopyFailed, ParquetDataset
from ringleader.data.copies import IN_USE, KEPT, NodeCopies, remove_unused
from ringleader.data.inside import read_copies
from ringleader.data.kept_copies import KeptCopies
from ringleader.data.sources.parquet import ParquetSource

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
    return sorted(node.glob("*.arrow"))


def kept_in(node: Path) -> list[Path]:
    return sorted((node.parent.parent / KEPT).glob("*.arrow"))


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
    name = Path(copies.of(str(source / "a.parquet")))
    name.rename(name.with_suffix(".partial"))
    os.truncate(name.with_suffix(".partial"), 40)
    dataset = ParquetDataset(source / "a.parquet")
    dataset.read_copies(copies)
    assert numbers(dataset) == list(range(ROWS))
    assert copies_in(node) == [name]


KILLED = """
import resource, signal, sys
from pathlib import Path
from ringleader.data.copies import NodeCopies

copies = NodeCopies(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
copies.of(sys.argv[2])
"""
"""A worker that is killed by the byte behind the first 20,000 of any file."""


def test_a_worker_killed_while_it_writes_leaves_no_copy_and_no_lock(tmp_path: Path, node: Path) -> None:
    # Small as Parquet, 80,000 bytes as Arrow.
    file = tmp_path / "zeros.parquet"
    pq.write_table(pa.table({"n": [0] * 10_000}), file)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(node), str(file)], check=False, timeout=GUARD_S * 4
    )
    assert ended.returncode == -signal.SIGXFSZ
    assert (copies_in(node), kept_in(node), len(list(node.glob("*.partial")))) == ([], [], 1)
    dataset = ParquetDataset(file)
    dataset.read_copies(NodeCopies(node, stalled_s=0.0))
    assert numbers(dataset) == [0] * 10_000
    assert list(node.glob("*.partial")) == []


def test_a_copy_left_by_another_job_is_taken_and_made_again_where_it_is_not_whole(
    source: Path, node: Path
) -> None:
    file = source / "a.parquet"
    ParquetDataset(file).read_copies(NodeCopies(node))
    inode = kept_in(node)[0].stat().st_ino
    shutil.rmtree(node.parent)  # as the supervisor does at an attempt's end
    later = node.parent.with_name("later-a1") / "node"
    ParquetDataset(file).read_copies(NodeCopies(later))
    assert [path.stat().st_ino for path in copies_in(later)] == [inode]
    # Held open: the number of a file that is gone may be that of the next one.
    with kept_in(node)[0].open("r+b") as torn:
        torn.truncate(40)
        last = node.parent.with_name("last-a1") / "node"
        dataset = ParquetDataset(file)
        dataset.read_copies(NodeCopies(last))
    assert numbers(dataset) == list(range(ROWS))
    made = copies_in(last)[0].stat().st_ino
    assert made == kept_in(node)[0].stat().st_ino != inode
    # A file that was written since, or has other rows, has a copy of its own.
    again = node.parent.with_name("again-a1") / "node"
    os.utime(file, ns=(1, 1))
    ParquetDataset(file).read_copies(NodeCopies(again))
    assert copies_in(again)[0].stat().st_ino != made
    write(file, first=5)
    changed = ParquetDataset(file)
    changed.read_copies(NodeCopies(node.parent.with_name("changed-a1") / "node"))
    assert numbers(changed) == list(range(5, 5 + ROWS))


def test_no_copy_is_left_of_a_file_whose_source_does_not_say_when_it_changed(
    source: Path, node: Path
) -> None:
    away = fsspec.filesystem("memory")
    for first, job in ((0, node), (7, node.parent.with_name("later-a1") / "node")):
        # Where values are stored as they are and without their extremes, both files have the same footer.
        table = pa.table({"n": list(range(first, first + ROWS))})
        pq.write_table(table, source / "a.parquet", write_statistics=False, use_dictionary=False)
        away.pipe("/kept/a.parquet", (source / "a.parquet").read_bytes())
        dataset = ParquetDataset("memory://kept/a.parquet")
        dataset.read_copies(NodeCopies(job))
        assert numbers(dataset) == list(range(first, first + ROWS))
        assert (len(copies_in(job)), kept_in(job)) == (1, [])


def test_what_no_job_uses_is_removed_longest_unused_first_and_nothing_that_one_uses(tmp_path: Path) -> None:
    kept, used = KeptCopies(tmp_path / "kept", share=1.0), tmp_path / "used"
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(b"0" * 8)
        kept.keep(name, tmp_path / name)
    assert kept.take("new", used)
    for name in ("old", "new"):
        (tmp_path / name).unlink()
    KeptCopies(tmp_path / "kept", share=0.0).make_room()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["new"]
    used.unlink()
    kept.make_room()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["new"]
    kept.make_room(1 << 60)
    assert list((tmp_path / "kept").iterdir()) == []


def test_who_comes_next_removes_what_is_beyond_the_share_of_the_disk(node: Path) -> None:
    kept = node.parent.parent / KEPT
    kept.mkdir(parents=True, mode=0o700)
    (kept / "large.arrow").touch()
    os.truncate(kept / "large.arrow", shutil.disk_usage(kept).total // 2)  # sparse
    NodeCopies(node)
    assert kept_in(node) == []


def test_a_copy_gives_the_batches_of_its_file_bit_for_bit(tmp_path: Path, node: Path) -> None:
    columns = {
        "whole": pa.array(range(ROWS), pa.int32()),
        "text": [None if n % 5 == 0 else f"row {n}" for n in range(ROWS)],
        "bytes": [bytes([n]) * n for n in range(ROWS)],
        "list": [[0.1 * n] * (n % 3) for n in range(ROWS)],
        "half": pa.array([n / 3 for n in range(ROWS)], pa.float32()),
        "struct": [{"a": n, "b": [n]} for n in range(ROWS)],
    }
    table = pa.table(columns).replace_schema_metadata({"made": "here"})
    pq.write_table(table, tmp_path / "all.parquet", row_group_size=6)
    source, copy = (ParquetSource(tmp_path / "all.parquet") for _ in range(2))
    copy.read_copies(NodeCopies(node))
    assert (copy.copied, source.copied) == (True, False)
    assert (copy.digest, copy.decoded_bytes(["text"])) == (source.digest, source.decoded_bytes(["text"]))
    for names in (None, ["half", "text"], ["bytes"]):
        for block in range(len(source.block_rows)):
            ours, theirs = copy.read(block, names), source.read(block, names)
            assert ours.equals(theirs, check_metadata=True)


def test_a_file_with_a_dictionary_is_copied_as_it_is(tmp_path: Path, node: Path) -> None:
    words = pa.array(["a", "b", "a", "c"]).dictionary_encode()
    pq.write_table(pa.table({"word": words}), tmp_path / "words.parquet", row_group_size=2)
    dataset = ParquetDataset(tmp_path / "words.parquet")
    dataset.read_copies(NodeCopies(node))
    (tmp_path / "words.parquet").unlink()
    assert [dataset[row]["word"] for row in range(4)] == ["a", "b", "a", "c"]
    assert (copies_in(node), len(list(node.glob("*.parquet")))) == ([], 1)


@pytest.mark.parametrize("damaged", [0.0, 0.5], ids=["no pages", "half a page"])
def test_a_file_with_a_column_that_cannot_be_decoded_is_copied_as_it_is(
    damaged: float, tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "damaged.parquet"
    table = pa.table({"n": list(range(ROWS)), "unread": [f"row {n}" for n in range(ROWS)]})
    pq.write_table(table, file, compression="none", use_dictionary=False)
    column = pq.read_metadata(file).row_group(0).column(1)
    left = int(column.total_compressed_size * damaged)
    with file.open("r+b") as opened:
        opened.seek(column.data_page_offset + left)
        opened.write(b"\xff" * (column.total_compressed_size - left))
    for _ in range(2):  # workers
        dataset = ParquetDataset(file, columns=["n"])
        dataset.read_copies(NodeCopies(node))
        assert numbers(dataset) == list(range(ROWS))
    assert sorted(path.suffix for path in node.glob("[!.]*")) == [".lock", ".parquet", ".undecoded"]
    assert capsys.readouterr().err.count("stays Parquet, as it cannot be decoded: ") == 1


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
