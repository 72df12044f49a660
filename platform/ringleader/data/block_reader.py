"""Decoded blocks of a source in memory: each read once while it is wanted, some ahead of time, by threads."""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import numpy as np
import pyarrow as pa

from ringleader.data.columns import plain, rows_in
from ringleader.data.sources.source import Source

READER_THREADS = 2


class DecodedBlock:
    """A block in memory, with its columns as arrays once they were asked for.

    Attributes:
        batch: as the source gave it.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._rows: dict[str, np.ndarray | pa.Array | None] = {}

    def rows(self, name: str) -> np.ndarray | pa.Array | None:
        """The rows of a column, as `columns.rows_in` gives them."""
        if name not in self._rows:
            self._rows[name] = rows_in(self.batch.column(name))
        return self._rows[name]


class BlockReader:
    """The blocks of one source that a process holds now.

    Args:
        columns: those that are read.
        cache_bytes: how much decoded data to keep beside what is wanted now, and to read ahead at most.
    """

    def __init__(self, source: Source, columns: Sequence[str], cache_bytes: int) -> None:
        self._source = source
        self._columns = list(columns)
        self._cache_bytes = cache_bytes
        self._lock = Lock()
        self._held: OrderedDict[int, DecodedBlock] = OrderedDict()
        self._reading: dict[int, Future[DecodedBlock]] = {}
        self._now: frozenset[int] = frozenset()
        self._ahead: tuple[int, ...] = ()
        self._size_bytes = 0
        self._read_bytes = 0
        self._read_rows = 0
        self._threads: ThreadPoolExecutor | None = None
        self._running = 0

    @property
    def held(self) -> int:
        """The number of blocks in memory."""
        return len(self._held)

    def read(self, block: int) -> DecodedBlock:
        """A block, from memory where it is there.

        Raises:
            BlockUnreadable: it cannot be read, now or ahead of time.
        """
        with self._lock:
            found = self._held.get(block)
            if found is not None:
                self._held.move_to_end(block)
                return found
            # In one go with the look into memory: of the threads that want a block one reads it.
            waiting = self._reading.get(block)
            mine = waiting is None
            if waiting is None:
                waiting = self._reading[block] = Future()
        return self._load(block, waiting) if mine else waiting.result()

    def expect(self, now: Sequence[int], ahead: Sequence[int]) -> None:
        """Keep the blocks `now` until this is called again, and read them and those `ahead` in threads, in this order:
        the latter as far as there is room."""
        with self._lock:
            self._now, self._ahead = frozenset(now), (*now, *ahead)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="blocks")
            wanted = len([block for block in self._ahead if self._missing(block)])
            starting = min(READER_THREADS - self._running, wanted)
            self._running += starting
        for _ in range(starting):
            self._threads.submit(self._read_ahead)

    def _load(self, block: int, waiting: "Future[DecodedBlock]") -> DecodedBlock:
        try:
            decoded = DecodedBlock(plain(self._source.read(block, self._columns)))
        # Whatever ends this read: threads that wait for the same block would otherwise wait for ever.
        except BaseException as error:
            waiting.set_exception(error)
            with self._lock:
                del self._reading[block]
            raise
        with self._lock:
            # In one go: between the two, others would find it neither held nor being read, and read it again.
            self._keep(block, decoded)
            del self._reading[block]
        waiting.set_result(decoded)
        return decoded

    def _keep(self, block: int, decoded: DecodedBlock) -> None:
        """Keep a block as the newest used; the oldest go while there is too much, but for those that are wanted."""
        self._held[block] = decoded
        self._size_bytes += decoded.batch.nbytes
        self._read_bytes += decoded.batch.nbytes
        self._read_rows += decoded.batch.num_rows
        self._make_room(0, block)

    def _make_room(self, size_bytes: int, newest: int) -> None:
        """Let go of what is not wanted, oldest first, until so much more fits."""
        # With the newest: a block larger than the whole cache would go at once, and be read again for its next row.
        wanted = {*self._ahead, newest}
        for block in [block for block in self._held if block not in wanted]:
            if self._size_bytes + size_bytes <= self._cache_bytes:
                break
            self._size_bytes -= self._held.pop(block).batch.nbytes

    def _missing(self, block: int) -> bool:
        return block not in self._held and block not in self._reading

    def _read_ahead(self) -> None:
        """Read what is missing of the blocks that are expected, one after the other."""
        while (taken := self._next()) is not None:
            block, waiting = taken
            try:
                self._load(block, waiting)
            except Exception:  # whoever asks for the block reads it again, and gets the error
                with self._lock:
                    # It is still missing: this loop would try it again without end.
                    self._ahead = tuple(other for other in self._ahead if other != block)

    def _next(self) -> "tuple[int, Future[DecodedBlock]] | None":
        """Begin the next block; None: there is no room for one, or nothing is missing, and the thread ends."""
        with self._lock:
            # The first one alone: were a smaller one behind it begun instead, it would take the room that this one
            # waits for.
            block = next(filter(self._missing, self._ahead), None)
            if block is not None and (block in self._now or self._fits(block)):
                waiting = self._reading[block] = Future()
                return block, waiting
            # Under the lock of `expect`, which starts no thread where one that runs will see what it adds.
            self._running -= 1
            return None

    def _fits(self, block: int) -> bool:
        """Whether there is room for a block beside those that are wanted sooner."""
        # With those that other threads are reading: they will be in memory, and no size of them is known yet.
        size_bytes = self._estimate(block) + sum(map(self._estimate, self._reading))
        self._make_room(size_bytes, block)
        return self._size_bytes + size_bytes <= self._cache_bytes

    def _estimate(self, block: int) -> int:
        """The size of a block, from those that were read."""
        rows = int(self._source.block_rows[block])
        # Nothing is known before the first block was read: it counts as nothing, and so is begun.
        return self._read_bytes * rows // max(1, self._read_rows)
