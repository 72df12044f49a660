"""What the program prints beside its session calls: every member does, joiners again, and it is told once."""

import json
from math import inf

from ringleader.runtime.messages import PrintedLine

MOST_HELD = 10_000
Said = tuple[str, PrintedLine]
"""A line and who has printed it."""


class PrintedOnce:
    """Takes each line of a place in the program from whoever brings it first. A member tells its lines in their order,
    so those behind the newest that was told are new, also where their first teller was lost in the middle.

    Args:
        noted: what the process before this one wrote down.
        begun: whether it is known which calls were finished when the attempt began: their lines were told by the
            attempt before.
    """

    def __init__(self, noted: bytes | None, *, begun: bool) -> None:
        self._begun = begun or noted is not None
        newest = json.loads(noted) if noted is not None else {}
        self._newest: dict[str, tuple[float, float]] = {level: (a, b) for level, (a, b) in newest.items()}
        self._held: list[Said] = []

    def take(self, worker: str, line: PrintedLine) -> list[Said]:
        """What is to be told of it now."""
        if line.before is None:
            return [(worker, line)]
        if not self._begun:
            self._held += [(worker, line)][: MOST_HELD - len(self._held)]
            return []
        place = (line.before, line.number)
        if place <= self._newest.get(line.level, (-1, -1)):
            return []
        self._newest[line.level] = place
        return [(worker, line)]

    def begin(self, calls: int) -> list[Said]:
        """The attempt begins with so many finished calls: the lines before them, and before the one that ran, were
        told. Returns what is to be told now."""
        told = (calls, inf) if calls else (-1, -1)
        for level in ("info", "error"):
            self._newest[level] = max(told, self._newest.get(level, (-1, -1)))
        return self.end()

    def end(self) -> list[Said]:
        """The same where the attempt ends before it has begun."""
        self._begun, held, self._held = True, self._held, []
        return [said for worker, line in held for said in self.take(worker, line)]

    def note(self) -> bytes | None:
        """For the process after this one; None before anything is known."""
        return json.dumps(self._newest).encode() if self._begun else None
