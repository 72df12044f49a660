"""Loading processes beside their worker: they hold none of its connections, and do not outlive it."""

import multiprocessing as mp
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import processes

from ringleader.errors import DatasetUnsupported
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.slices import Slice, load

GUARD_S = 60
ROWS, STUCK = 8, 4


class Sockets:
    """Rows that say how many of the worker's sockets their loading process has. Row `STUCK` never comes."""

    def __init__(self, holding: list[int], stuck: Connection | None = None) -> None:
        self._inodes = {os.fstat(descriptor).st_ino for descriptor in holding}
        self._stuck = stuck

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> torch.Tensor:
        if self._stuck is not None and row == STUCK:
            self._stuck.send("stuck")
            signal.pause()
        return torch.tensor(len(self._inodes & open_inodes()))


def open_inodes() -> set[int]:
    inodes = set()
    for path in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the listing itself
            inodes.add(os.fstat(int(path.name)).st_ino)
    return inodes


def pieces() -> Iterator[Slice]:
    return (Slice(("step", row, 0), 0, np.array([row])) for row in range(ROWS))


def test_a_loading_process_holds_no_connection_of_its_worker():
    listener = socket.create_server(("127.0.0.1", 0))
    near, far = socket.socketpair()
    holding = [listener.fileno(), near.fileno(), far.fileno()]
    with listener, near, far:
        loaded = LoaderProcesses(0).load(0, Sockets(holding), pieces(), None, 2)
        assert [int(batch) for batch in loaded] == [0] * ROWS
        near.send(b"still connected")
        assert far.recv(32) == b"still connected", "the worker's own sockets are as they were"


def hold(connection: socket.socket, stuck: Connection) -> None:
    """A worker with a connection, one of whose loading processes is inside a row for ever."""
    mp.set_start_method("fork", force=True)  # as where the worker is no child of a test
    rows = Sockets([connection.fileno()], stuck)
    for _ in LoaderProcesses(0).load(0, rows, pieces(), None, 2):
        pass


def test_the_peers_of_a_killed_worker_see_its_end_while_a_loading_process_is_inside_a_row():
    near, far = socket.socketpair()
    heard, stuck = processes().Pipe(duplex=False)
    worker = processes().Process(target=hold, args=(far, stuck))
    worker.start()
    far.close()
    stuck.close()
    with near, heard:
        assert heard.poll(GUARD_S)
        assert heard.recv() == "stuck"
        worker.kill()
        near.settimeout(GUARD_S)
        assert near.recv(1) == b"", "the connection ends with the worker"
        assert heard.poll(GUARD_S), "and so does what only the loading process still held"
        assert ended(heard)
    worker.join(GUARD_S)


def ended(pipe: Connection) -> bool:
    try:
        pipe.recv()
    except EOFError:
        return True
    return False


def test_where_there_is_nothing_to_load_no_process_starts():
    before = set(torch.multiprocessing.active_children())
    nothing = LoaderProcesses(0).load(0, Sockets([]), iter(()), None, 2)
    assert set(torch.multiprocessing.active_children()) == before
    assert list(nothing) == []
    batches = LoaderProcesses(0).load(0, Sockets([]), pieces(), None, 1)
    assert len(set(torch.multiprocessing.active_children()) - before) == 1
    assert len(list(batches)) == ROWS


BY_A_FORK_SERVER = """
import multiprocessing, numpy, torch
from ringleader.errors import DatasetUnsupported
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.slices import Slice, load
multiprocessing.set_start_method("forkserver")
rows = torch.utils.data.TensorDataset(torch.arange(4))
piece = Slice(("step", 0, 0), 0, numpy.arange(4))
print([batch[0].tolist() for batch in LoaderProcesses(0).load(0, rows, iter([piece]), None, 1)])
"""


def test_a_fork_server_may_start_the_processes_that_load() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BY_A_FORK_SERVER], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "[[0, 1, 2, 3]]", done.stderr


class Uneven:
    """Rows of the program's own, each longer than the one before."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"x": torch.zeros(row)}


@pytest.mark.parametrize("loaders", [0, 2])
def test_rows_of_unequal_shape_are_named_wherever_they_are_loaded(loaders: int) -> None:
    two = Slice(("step", 0, 0), 0, np.array([2, 3]))
    loaded = LoaderProcesses(0).load(0, Uneven(), iter([two]), None, loaders) if loaders else None
    with pytest.raises(DatasetUnsupported, match=r"'x' has the shapes \(2,\) and \(3,\)"):
        next(loaded or load(Uneven(), [two], seed=0, collate=None))
