"""The index of a set of files: made once on a node, never of files that have changed, never one that others wrote."""

import io
import json
import os
import resource
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counted_files import SCHEME, CountedFiles, count_files, openers, settle
from forks import processes
from waiting import wait_for

from ringleader import index_group
from ringleader.data import ArrowSource, JsonlSource, Packed, WebDatasetSource
from ringleader.data.sources import kept_index
from ringleader.data.sources.kept_index import Facts, by_threads, index_key, kept_facts
from ringleader.data.sources.parquet import ParquetSource
from ringleader.data.sources.source import Source
from ringleader.files import INDEXES, SCRATCH, own_indexes

ROWS, FILES = 30, 3
GUARD_S = 60.0


@pytest.fixture(autouse=True)
def _own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    count_files()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    here = tmp_path / "files"
    here.mkdir()
    return write(here)


def write(here: Path) -> Path:
    for number in range(FILES):
        texts = [f"{number}-{row}" for row in range(ROWS)]
        table = pa.table({"input_ids": [list(range(row % 4)) for row in range(ROWS)], "text": texts})
        pq.write_table(table, here / f"{number}.parquet", row_group_size=7)
        with pa.ipc.new_file(here / f"{number}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=7)
        (here / f"{number}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
        with tarfile.open(here / f"{number}.tar", "w") as tar:
            for text in texts:
                info = tarfile.TarInfo(f"{text}.json")
                info.size = len(text) + 2
                tar.addfile(info, io.BytesIO(json.dumps(text).encode()))
    settle(here)
    return here


KINDS: dict[str, Callable[[str], Source]] = {
    "parquet": ParquetSource,
    "arrow": ArrowSource,
    "jsonl": JsonlSource,
    "tar": WebDatasetSource,
}
PACKED = {"packed": lambda place: Packed(ArrowSource(place), 5).files()}


def files_of(folder: Path, kind: str) -> list[Path]:
    ending = ".arrow" if kind == "packed" else f".{kind}"
    return sorted(file for file in folder.iterdir() if file.suffix == ending)


@pytest.mark.parametrize("kind", [*KINDS, *PACKED])
def test_a_set_is_read_once_on_a_node_whoever_opens_it(kind: str, folder: Path) -> None:
    make = (KINDS | PACKED)[kind]
    first = make(f"{SCHEME}{folder}")
    opened = {file: len(openers(file)) for file in files_of(folder, kind)}
    again = make(f"{SCHEME}{folder}")
    assert min(opened.values()) > 0
    assert {file: len(openers(file)) for file in opened} == opened
    assert (again.digest, again.schema) == (first.digest, first.schema)
    assert again.block_rows.tolist() == first.block_rows.tolist()
    blocks = range(len(first.block_rows))
    assert [again.read(b, None) for b in blocks] == [first.read(b, None) for b in blocks]


def test_what_is_asked_for_makes_another_index(folder: Path) -> None:
    place = f"{SCHEME}{folder}"
    wide, narrow = JsonlSource(place), JsonlSource(place, block_lines=7)
    typed = [JsonlSource(place, schema=pa.schema([("text", kind)])) for kind in (pa.string(), pa.binary())]
    assert len(narrow.block_rows) > len(wide.block_rows)
    assert [source.schema.field("text").type for source in typed] == [pa.string(), pa.binary()]
    assert len({source.index_key() for source in (wide, narrow, *typed)}) == 4


def _joined(place: str, go: Connection, said: Connection) -> None:
    count_files()
    go.recv()
    said.send([ParquetSource(place).digest, JsonlSource(place).digest])


def test_of_many_processes_at_once_one_reads_the_set(folder: Path) -> None:
    fork = processes()
    place = f"{SCHEME}{folder}"
    ends = [(fork.Pipe(), fork.Pipe()) for _ in range(3)]
    members = [
        fork.Process(target=_in_scratch, args=(os.environ[SCRATCH], _joined, place, go[1], said[1]))
        for go, said in ends
    ]
    for member in members:
        member.start()
    for go, _ in ends:
        go[0].send("go")
    told = [said[0].recv() for _, said in ends if said[0].poll(GUARD_S)]
    for member in members:
        member.join(GUARD_S)
    assert len(told) == 3
    assert told[0] == told[1] == told[2]
    assert {len(openers(file)) for kind in ("parquet", "jsonl") for file in files_of(folder, kind)} == {1}


def _in_scratch(scratch: str, act: Callable[..., None], *given: Any) -> None:
    # Its server was started with the environment of another test.
    os.environ[SCRATCH] = scratch
    act(*given)


def test_a_changed_file_makes_another_index_even_of_the_same_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n{"n": 2}\n')
    before = file.stat()
    wait_for("a name", lambda: index_key([str(file)], "jsonl"))
    first = JsonlSource(file)
    file.write_text('{"n": 1.5}\n{"n":9}\n'[: before.st_size])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    wait_for("a name again", lambda: index_key([str(file)], "jsonl"))
    changed = JsonlSource(file)
    assert changed.digest != first.digest
    assert changed.schema.field("n").type == pa.float64()


def test_no_index_is_kept_of_what_has_just_been_written(folder: Path) -> None:
    (file, *_) = files_of(folder, "jsonl")
    os.utime(file)
    place = f"{SCHEME}{file}"
    assert index_key([place]) == ""
    JsonlSource(place)
    JsonlSource(place)
    assert len(openers(file)) == 2


def test_no_index_is_kept_of_what_changes_while_it_is_made() -> None:
    names = iter(["11", "22"])
    kept_facts(lambda: next(names), lambda: facts(1))
    assert list(own_indexes().glob("*.arrow")) == []
    assert kept_facts(lambda: "11", lambda: facts(2)) == facts(2)


def test_a_file_system_that_does_not_say_when_keeps_no_index(folder: Path) -> None:
    class Timeless(CountedFiles):
        protocol = ("timeless",)

        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            return super()._strip_protocol(str(path).replace("timeless://", SCHEME))

        def info(self, path: str, **named: Any) -> dict[str, Any]:
            return {name: value for name, value in super().info(path, **named).items() if name != "mtime"}

    fsspec.register_implementation("timeless", Timeless, clobber=True)
    assert index_key([f"timeless://{files_of(folder, 'jsonl')[0]}"]) == ""


def facts(number: int) -> Facts:
    return {"n": pa.array([number] * 100, pa.int64()), "text": pa.array(["é", None])}


def counted(made: list[int], number: int) -> Callable[[], Facts]:
    def make() -> Facts:
        made.append(number)
        return facts(number)

    return make


def test_an_index_that_the_disk_has_damaged_is_made_again() -> None:
    made: list[int] = []
    kept_facts(lambda: "ab", counted(made, 1))
    (kept,) = own_indexes().glob("*.arrow")
    whole = kept.read_bytes()
    for damaged in (whole[:-9], whole[:200] + b"x" + whole[201:], b""):
        kept.write_bytes(damaged)
        assert kept_facts(lambda: "ab", counted(made, 2)) == facts(2)
        assert kept_facts(lambda: "ab", counted(made, 3)) == facts(2)
    # The index of another set is none of this one.
    kept.rename(kept.with_name("cd.arrow"))
    assert kept_facts(lambda: "cd", counted(made, 4)) == facts(4)
    assert made == [1, 2, 2, 2, 4]


@pytest.mark.parametrize("open_to_others", ["", "indexes"])
def test_no_index_is_taken_from_a_folder_that_others_can_write_to(open_to_others: str) -> None:
    made: list[int] = []
    kept_facts(lambda: "ab", counted(made, 1))
    own = own_indexes()
    assert own.stat().st_mode & 0o777 == own.parent.stat().st_mode & 0o777 == 0o700
    (own.parent / open_to_others).chmod(0o777)
    assert kept_facts(lambda: "ab", counted(made, 2)) == facts(2)


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can give files away")
def test_no_index_is_taken_that_another_account_wrote() -> None:
    made: list[int] = []
    kept_facts(lambda: "ab", counted(made, 1))
    (kept,) = own_indexes().glob("*.arrow")
    os.chown(kept, 65534, -1)
    assert kept_facts(lambda: "ab", counted(made, 2)) == facts(2)


def test_no_index_is_kept_where_no_folder_is_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(SCRATCH, str(tmp_path / "file"))
    assert kept_facts(lambda: "ab", lambda: facts(1)) == facts(1)


def test_who_has_a_folder_of_its_own_reads_the_nodes_and_changes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    kept_facts(lambda: "ab", counted(made, 1))
    nodes = own_indexes()
    before = {file: file.stat().st_mtime_ns for file in [nodes, *nodes.iterdir()]}
    monkeypatch.setenv(INDEXES, str(nodes))
    monkeypatch.setenv(SCRATCH, str(tmp_path / "other"))
    assert kept_facts(lambda: "ab", counted(made, 2)) == facts(1)
    assert kept_facts(lambda: "cd", counted(made, 3)) == facts(3)
    assert {file: file.stat().st_mtime_ns for file in [nodes, *nodes.iterdir()]} == before
    assert [file.name for file in own_indexes().glob("*.arrow")] == ["cd.arrow"]


def test_the_longest_unused_make_room() -> None:
    kept_facts(lambda: "aa", lambda: facts(1))
    (kept,) = own_indexes().glob("*.arrow")
    size = kept.stat().st_size
    for number, name in enumerate(("bb", "cc")):
        kept_facts(lambda name=name: name, lambda number=number: facts(number), most_bytes=3 * size)
    for age, name in ((30, "aa"), (20, "bb"), (10, "cc")):
        past = time.time() - age
        os.utime(own_indexes() / f"{name}.arrow", (past, past))
    kept_facts(lambda: "aa", lambda: facts(9))  # used
    kept_facts(lambda: "dd", lambda: facts(4), most_bytes=3 * size)
    assert sorted(file.stem for file in own_indexes().glob("*.arrow")) == ["aa", "cc", "dd"]


@pytest.fixture
def maker() -> Iterator[tuple[Any, Connection]]:
    """A process that makes the index "ab", and does not finish."""
    fork = processes()
    here, there = fork.Pipe()
    made = fork.Process(target=_in_scratch, args=(os.environ[SCRATCH], _stuck, there))
    made.start()
    assert here.poll(GUARD_S)
    yield made, here
    made.kill()
    made.join(GUARD_S)


def _stuck(said: Connection) -> None:
    def make() -> Facts:
        said.send("making")
        said.recv()
        return facts(1)

    kept_facts(lambda: "ab", make)


def test_who_comes_meanwhile_waits_for_the_index(maker: tuple[Any, Connection]) -> None:
    process, says = maker
    fork = processes()
    here, there = fork.Pipe()
    other = fork.Process(target=_in_scratch, args=(os.environ[SCRATCH], _second, there))
    other.start()
    assert here.poll(GUARD_S)
    assert here.recv() == "asks"
    says.send("go on")
    assert here.poll(GUARD_S)
    assert here.recv() == 1
    other.join(GUARD_S)
    process.join(GUARD_S)


def _second(said: Connection) -> None:
    said.send("asks")
    said.send(kept_facts(lambda: "ab", lambda: facts(2))["n"][0].as_py())


def test_a_maker_that_is_killed_leaves_the_index_to_the_next(maker: tuple[Any, Connection]) -> None:
    maker[0].kill()
    made: list[int] = []
    assert kept_facts(lambda: "ab", counted(made, 2)) == facts(2)
    assert kept_facts(lambda: "ab", counted(made, 3)) == facts(2)


def test_a_maker_that_is_stopped_holds_nobody_up(maker: tuple[Any, Connection]) -> None:
    os.kill(maker[0].pid, signal.SIGSTOP)
    assert kept_facts(lambda: "ab", lambda: facts(2), silent_s=0.5) == facts(2)
    assert list(own_indexes().glob("*.arrow")) == []


def test_a_maker_that_takes_long_is_waited_for(maker: tuple[Any, Connection]) -> None:
    lock = own_indexes() / "ab.lock"
    since = lock.stat().st_mtime_ns
    wait_for("a sign of life", lambda: lock.stat().st_mtime_ns > since, 4 * kept_index.BEAT_S)


class Nodes:
    """A group of nodes that are folders of this process: who asks for an index that is not there is to make it."""

    def __init__(self) -> None:
        self.made: dict[str, bytes | None] = {}

    def take(self, name: str) -> bytes | None:
        return self.made.get(name)

    def give(self, name: str, index: bytes | None) -> None:
        self.made[name] = index


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    group = Nodes()
    monkeypatch.setattr(index_group, "_groups", {os.getpid(): group})
    return group


@pytest.mark.parametrize("kind", [*KINDS, *PACKED])
def test_a_set_is_read_once_in_a_group_of_nodes(
    kind: str, folder: Path, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = (KINDS | PACKED)[kind]
    first = make(f"{SCHEME}{folder}")
    opened = {file: len(openers(file)) for file in files_of(folder, kind)}
    monkeypatch.setenv(SCRATCH, str(tmp_path / "another"))
    again = make(f"{SCHEME}{folder}")
    assert {file: len(openers(file)) for file in opened} == opened
    assert (again.digest, again.block_rows.tolist()) == (first.digest, first.block_rows.tolist())
    nodes.made.clear()
    make(f"{SCHEME}{folder}")  # the other node keeps what it was handed
    assert {file: len(openers(file)) for file in opened} == opened


def test_an_index_that_was_damaged_on_its_way_is_made_again(nodes: Nodes) -> None:
    made: list[int] = []
    nodes.made["ab"] = b"x" * 200
    assert kept_facts(lambda: "ab", counted(made, 1)) == facts(1)
    whole = nodes.made["ab"]
    assert whole is not None
    assert made == [1]
    nodes.made["cd"] = whole  # the index of another set is none of this one
    assert kept_facts(lambda: "cd", counted(made, 2)) == facts(2)


def test_the_others_hear_of_an_index_that_could_not_be_made(nodes: Nodes) -> None:
    def fail() -> Facts:
        raise ValueError("no file")

    names = iter(["ef", "gh"])
    with pytest.raises(ValueError, match="no file"):
        kept_facts(lambda: "ab", fail)
    kept_facts(lambda: next(names), lambda: facts(1))  # of files that change
    assert nodes.made == {"ab": None, "ef": None}


def test_where_nothing_can_be_kept_the_group_has_it(nodes: Nodes, full: None) -> None:
    made: list[int] = []
    assert [kept_facts(lambda: "ab", counted(made, n)) for n in (1, 2)] == [facts(1)] * 2
    assert list(own_indexes().glob("*.arrow*")) == []


@pytest.fixture
def full() -> Iterator[None]:
    """No file of this process can grow, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_once_and_used_again_when_there_is_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        for number in (1, 2):
            assert kept_facts(lambda: "ab", counted(made, number)) == facts(number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err.count(f"no index of files can be kept in {own_indexes()} (") == 1
    kept_facts(lambda: "ab", counted(made, 3))
    kept_facts(lambda: "ab", counted(made, 4))
    assert made == [1, 2, 3]


def test_where_nothing_can_be_kept_processes_look_through_files_at_the_same_time() -> None:
    fork = processes()
    together = fork.Barrier(2)
    here, there = fork.Pipe()
    (first_here, first_there), *others = [fork.Pipe() for _ in range(3)]
    first = fork.Process(target=_in_scratch, args=(os.environ[SCRATCH], _unkept, first_there, there, None))
    waiting = [
        fork.Process(target=_in_scratch, args=(os.environ[SCRATCH], _unkept, theirs, there, together))
        for _, theirs in others
    ]
    first.start()
    assert first_here.poll(GUARD_S)
    assert first_here.recv() == "making"
    for process in waiting:
        process.start()
    for ours, _ in others:
        assert ours.poll(GUARD_S)
        assert ours.recv() == "asks"
    here.send("go on")
    for ours, _ in others:
        assert ours.poll(GUARD_S)
        assert ours.recv() == "made"
    for process in (first, *waiting):
        process.join(GUARD_S)


def _unkept(said: Connection, go: Connection, together: Any) -> None:
    def make() -> Facts:
        if together is None:
            said.send("making")
            go.recv()
        else:
            together.wait(GUARD_S)  # for another process that makes it too
        return facts(1)

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if together is not None:
        said.send("asks")
    kept_facts(lambda: "ab", make)
    said.send("made")


def test_what_is_found_by_threads_comes_in_its_order_and_of_errors_the_first() -> None:
    together = threading.Barrier(2)

    def find(number: int) -> int:
        if number < 2:
            together.wait(GUARD_S)
        if number in (30, 60):
            raise ValueError(f"no {number}")
        return number

    assert list(by_threads(find, 29)) == list(range(29))
    with pytest.raises(ValueError, match="no 30"):
        list(by_threads(find, 99))
    assert list(by_threads(find, 0)) == []


@pytest.mark.parametrize("kind", ["parquet", "arrow", "tar", "packed"])
def test_many_threads_look_through_files(kind: str, folder: Path) -> None:
    class Threads(CountedFiles):
        def _open(self, path: str, mode: str = "rb", **named: Any) -> Any:
            opened.setdefault(Path(path).name, set()).add(threading.get_ident())
            return super()._open(path, mode, **named)

    opened: dict[str, set[int]] = {}
    fsspec.register_implementation("counted", Threads, clobber=True)
    (KINDS | PACKED)[kind](f"{SCHEME}{folder}")
    assert {file.name for file in files_of(folder, kind)} == opened.keys()
    *_, last = opened.values()
    assert threading.get_ident() not in last
