"""Who goes on from which version: where nobody may be ahead of the others an update waits until all are there. Pure."""


class VersionBarrier:
    """Of the workers of one generation, by rank. None has been seen yet."""

    def __init__(self, workers: int) -> None:
        self._at = dict.fromkeys(range(workers), -1)

    def here(self, worker: int, version: int) -> bool:
        """The worker asks for an item, or pushes one, with the weights of that version. Returns whether it is news."""
        news = version > self._at[worker]
        self._at[worker] = max(version, self._at[worker])
        return news

    def all_at(self, version: int) -> bool:
        return min(self._at.values()) >= version
