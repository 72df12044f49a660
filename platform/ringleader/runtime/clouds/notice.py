"""What a cloud says before it takes a machine away, and how it is asked."""

from dataclasses import dataclass
from typing import Protocol

import httpx


@dataclass(frozen=True, slots=True)
class Notice:
    """This machine goes. `at`: when, in seconds since the epoch."""

    why: str
    at: float


class Cloud(Protocol):
    """Asked every few seconds, from the machine it speaks of. httpx.HTTPError where it gives no usable answer.

    Attributes:
        METADATA: where its metadata are, from every machine of it.
        EVERY_S: how often it may be asked.
    """

    METADATA: str
    EVERY_S: float

    def __init__(self, metadata: httpx.Client) -> None: ...

    def notice(self, now: float) -> Notice | None:
        """What it says now; None: the machine stays."""
