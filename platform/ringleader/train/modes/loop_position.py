"""The position inside the running loop, in modes that commit less than a whole batch at a time."""

from collections.abc import Callable
from typing import Any


class LoopPosition:
    """One member's position beyond whole steps: the mode's own while it runs, and the one that a peer or a checkpoint
    gave, until the loop that it belongs to goes on from it.

    Attributes:
        given: the position that was given and is not taken yet; empty for none.
    """

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self._live: Callable[[], dict[str, Any]] = dict
        self._gather: Callable[[], None] = lambda: None

    def tell(self, live: Callable[[], dict[str, Any]], gather: Callable[[], None] = lambda: None) -> None:
        """Have a mode tell its position.

        Args:
            live: gives the position at a boundary; empty between two loops.
            gather: puts together what members know of it: called by all of them where a generation begins, before what
                one member alone holds is copied.
        """
        self._live, self._gather = live, gather

    def live(self) -> dict[str, Any]:
        """The mode's own position."""
        return self._live()

    def newest(self) -> dict[str, Any]:
        """The mode's own position, or, where it has none yet, the given one: a server that took over another one's
        state has begun no loop of its own."""
        return self.live() or self.given

    def gather(self) -> None:
        """Put together what members know of the position. Raises ExchangeBroken."""
        self._gather()

    def restore(self, given: dict[str, Any]) -> None:
        """Take the position of a peer or a checkpoint."""
        self.given = given

    def take(self) -> dict[str, Any]:
        """The given position, once."""
        given, self.given = self.given, {}
        return given
