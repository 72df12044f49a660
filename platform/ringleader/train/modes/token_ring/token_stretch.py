"""The tokens of one stretch of a loop, seen from a member's training thread."""

from abc import ABC, abstractmethod


class TokenStretch(ABC):
    """The tokens of a stretch, from `start` until all of them are over; by default at a member where nothing is pending
    and no token begins."""

    def __init__(self) -> None:
        self._halt = False

    @property
    def halted(self) -> bool:
        return self._halt

    def halt(self) -> None:
        """Ask that no member begins another item; the stretch is over when all that is pending is in the tokens."""
        self._halt = True

    def start(self) -> None:  # noqa: B027 - a default
        """Send the tokens that begin at this member on their way."""

    def added(self) -> None:  # noqa: B027 - a default
        """Record that this member has more pending."""

    def finish(self) -> None:  # noqa: B027 - a default
        """Record that this member will add nothing more."""

    @abstractmethod
    def over(self, patience_s: float = 0.0) -> bool:
        """Whether every copy of every token is the same for good; waits at most `patience_s` for it. Raises
        ExchangeBroken."""
