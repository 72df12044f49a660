"""The versions that workers have gone on from: where none may be ahead of the others, an update waits for all. Pure."""


class VersionBarrier:
    """The barrier of one generation's workers, by rank; none has been seen yet."""

    def __init__(self, workers: int) -> None:
        self._at = dict.fromkeys(range(workers), -1)

    def here(self, worker: int, version: int) -> bool:
        """Record that the worker asks for an item, or pushes one, with the weights of that version. Returns whether it
        is news."""
        news = version > self._at[worker]
        # Requests and pushes come on two threads: an older version may be heard of after a newer one.
        self._at[worker] = max(version, self._at[worker])
        return news

    def all_at(self, version: int) -> bool:
        return min(self._at.values()) >= version
