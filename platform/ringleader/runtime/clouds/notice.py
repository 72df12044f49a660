"""The notice that a cloud gives before it takes a machine away, and the protocol by which it is asked."""

from dataclasses import dataclass
from typing import Protocol

import httpx


@dataclass(frozen=True, slots=True)
class Notice:
    """The end of this machine. `at`: the moment, in seconds since the epoch."""

    why: str
    at: float


class Cloud(Protocol):
    """A cloud's metadata, asked every few seconds from the machine in question. Raises httpx.HTTPError without a usable
    answer.

    Attributes:
        METADATA: the base URL of its metadata, the same from every machine of it.
        EVERY_S: the seconds between two questions.
    """

    METADATA: str
    EVERY_S: float

    def __init__(self, metadata: httpx.Client) -> None: ...

    def notice(self, now: float) -> Notice | None:
        """The notice that it gives now; None: the machine stays."""
