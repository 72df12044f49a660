"""Memory that the processes of one node share: segments without a name, mapped through their owner's process.

A segment is an anonymous file (memfd). The kernel frees it with the last process that holds it, however that ended, so
nothing is left in /dev/shm and no size limit of a mount applies. Whoever may open `/proc/<pid>/fd` of the owner can
map it: processes of the same user that see each other's process ids.
"""

import mmap
import os
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

NAME = "ringleader"
ALIGN_BYTES = 64
WORD_BYTES = 8
FIRST_BYTES, MOST_BYTES = 1 << 20, 64 << 20
"""The sizes from which and up to which an arena's segments grow; one tensor may need more."""

Key = tuple[int, int]
"""A segment as other processes know it: (its number among all that its owner ever made, the owner's descriptor).
Descriptors are reused, numbers are not."""

Address = tuple[int, int, int]
"""A segment's key, and a byte offset in that segment."""

_numbers = count(1)


class Segment:
    """A mapped span of shared memory. `descriptor` is the owner's, -1 where another process's segment is mapped."""

    def __init__(self, memory: mmap.mmap, descriptor: int) -> None:
        self.descriptor = descriptor
        self.number = next(_numbers)
        self._memory = memory
        # Otherwise a child forked by user code could write into its parent's gradients.
        memory.madvise(mmap.MADV_DONTFORK)

    @property
    def key(self) -> Key:
        return self.number, self.descriptor

    @staticmethod
    def create(nbytes: int) -> "Segment":
        """A segment of zeros.

        Raises:
            OSError: the node has no memory left.
        """
        # Not inherited by programs that the job starts: they would keep the memory from being freed.
        descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC)
        try:
            # The pages are reserved now: a node without room fails here and not with a signal at first touch.
            os.posix_fallocate(descriptor, 0, nbytes)
            return Segment(mmap.mmap(descriptor, nbytes), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @staticmethod
    def of(pid: int, descriptor: int) -> "Segment":
        """Map what process `pid` has open as `descriptor`. Raises OSError when it is gone or may not be opened."""
        own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            # The owner may have closed its segment and reused the number: never write another file.
            if not str(Path(f"/proc/self/fd/{own}").readlink()).startswith(f"/memfd:{NAME}"):
                raise OSError(f"descriptor {descriptor} of process {pid} is no segment")
            return Segment(mmap.mmap(own, os.fstat(own).st_size), -1)
        finally:
            # The mapping stays: `mmap` holds a duplicate.
            os.close(own)

    def tensor(self, offset: int, length: int, dtype: torch.dtype) -> Tensor:
        """(length,) from byte `offset` on; keeps the mapping alive."""
        if length == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=length, offset=offset)

    def words(self) -> memoryview:
        """The whole segment as aligned int64, each read and written by one instruction."""
        return memoryview(self._memory).cast("q")

    def close(self) -> None:
        """Give up the descriptor: nobody can map the segment from now on. Mappings and tensors stay; idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def __del__(self) -> None:
        self.close()


class Arena:
    """Tensors in shared memory that live as long as the arena."""

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._size_bytes = 0
        self._free = 0
        self._addresses: dict[int, Address] = {}

    def empty(self, length: int, dtype: torch.dtype) -> Tensor:
        """A fresh (length,) tensor of zeros. Raises OSError when the node has no memory left."""
        nbytes = length * dtype.itemsize
        if not self._segments or self._free + nbytes > self._size_bytes:
            # Doubled each time, so that segments stay few: each is a mapping in every peer.
            self._size_bytes = max(nbytes, min(MOST_BYTES, max(FIRST_BYTES, 2 * self._size_bytes)))
            self._segments.append(Segment.create(self._size_bytes))
            self._free = 0
        segment, offset = self._segments[-1], self._free
        self._free += -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
        tensor = segment.tensor(offset, length, dtype)
        self._addresses[tensor.data_ptr()] = (*segment.key, offset)
        return tensor

    def address(self, tensor: Tensor) -> Address:
        """The address at which another process finds a tensor that `empty` made."""
        return self._addresses[tensor.data_ptr()]
