"""The digests of the files that loops read: committed state, so that changed files are refused to a resumed job."""

from bisect import bisect_right
from typing import Any

from ringleader.data.inside import digest_of
from ringleader.data.unreadable import FilesChanged


class FileDigests:
    """By session call, from the one on at which it changed: the digest of the files in a loop's data set."""

    def __init__(self) -> None:
        self._newest = -1
        self._from: list[int] = []
        self._digests: list[str] = []

    def check(self, number: int, dataset: Any) -> None:
        """Check the files of call `number`'s loop, or note them where it is the first to begin.

        Raises:
            FilesChanged: the call began with other ones, on another worker or in an earlier attempt.
        """
        digest = digest_of(dataset)
        place = bisect_right(self._from, number)
        known = self._digests[place - 1] if place else ""
        if number <= self._newest:
            if known != digest:
                raise FilesChanged(type(dataset).__name__)
            return
        if known != digest:
            self._from.append(number)
            self._digests.append(digest)
        self._newest = number

    def state(self) -> Any:
        return self._newest, self._from, self._digests

    def restore(self, state: Any) -> None:
        newest, starts, digests = state
        self._newest, self._from, self._digests = newest, list(starts), list(digests)
