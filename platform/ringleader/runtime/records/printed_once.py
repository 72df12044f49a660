"""Lines that the program prints beside its session calls: each member prints them, joiners again; recorded once."""

import json
from math import inf

from ringleader.runtime.messages import PrintedLine

MOST_HELD = 10_000
Said = tuple[str, PrintedLine]
"""A line and the worker that printed it."""


class PrintedOnce:
    """A filter that takes each line of the program from the member that sends it first. A member sends its lines in
    order, so those behind the newest that was taken are new, also where their first sender was lost in the middle.

    Args:
        noted: the `note` of the process before this one.
        begun: whether the calls that were finished when the attempt began are known: their lines were recorded by the
            attempt before.
    """

    def __init__(self, noted: bytes | None, *, begun: bool) -> None:
        self._begun = begun or noted is not None
        newest = json.loads(noted) if noted is not None else {}
        self._newest: dict[str, tuple[float, float]] = {level: (a, b) for level, (a, b) in newest.items()}
        self._held: list[Said] = []

    def take(self, worker: str, line: PrintedLine) -> list[Said]:
        """The lines to record now: this one, or none where it is known already or has to wait for `begin`."""
        if line.before is None:
            return [(worker, line)]
        if not self._begun:
            # An empty slice once it is full: the first lines stay.
            self._held += [(worker, line)][: MOST_HELD - len(self._held)]
            return []
        place = (line.before, line.number)
        if place <= self._newest.get(line.level, (-1, -1)):
            return []
        self._newest[line.level] = place
        return [(worker, line)]

    def begin(self, calls: int) -> list[Said]:
        """Begin with so many finished calls: the lines before them, and before the one that ran, were recorded. Returns
        the lines to record now."""
        # All lines before that call, whatever their number: they are in the attempt before.
        told = (calls, inf) if calls else (-1, -1)
        for level in ("info", "error"):
            self._newest[level] = max(told, self._newest.get(level, (-1, -1)))
        return self.end()

    def end(self) -> list[Said]:
        """Release the lines that waited, also where the attempt ends before it has begun."""
        self._begun, held, self._held = True, self._held, []
        return [said for worker, line in held for said in self.take(worker, line)]

    def note(self) -> bytes | None:
        """The state for the process after this one; None before anything is known."""
        return json.dumps(self._newest).encode() if self._begun else None
