"""The group whose nodes hand each other the indexes of files: one node makes an index, the others get its bytes.

`runtime/worker/handed_indexes.py` implements it over the supervisor; a process that is no worker has none.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class IndexGroup(Protocol):
    """The indexes of a group, by name. Called from any thread."""

    def take(self, name: str) -> bytes | None:
        """The index of that name, once a node of the group has made it. None: this process is to make it, and to say so
        by `give`."""

    def give(self, name: str, index: bytes | None) -> None:
        """Hand the index to the others, after a `take` without one. None: none was made."""


_groups: dict[int, IndexGroup] = {}


@contextmanager
def part_of(group: IndexGroup) -> Iterator[None]:
    """Have the indexes that this process makes in the block, or needs there, be those of the group."""
    _groups.clear()
    _groups[os.getpid()] = group
    try:
        yield
    finally:
        _groups.clear()


def joined() -> IndexGroup | None:
    """The group of this process: none of one that it has forked, which has no connection of its own."""
    return _groups.get(os.getpid())
