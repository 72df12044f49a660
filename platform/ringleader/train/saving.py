"""This member's part of the job's checkpoints: when one is due, what it holds, and where a new attempt starts."""

import queue
import threading
import time
import traceback
from typing import Any

from ringleader.checkpoint.folder import Folder
from ringleader.checkpoint.manifest import Position, Saved
from ringleader.checkpoint.snapshot import Found, Part, Snapshot, newest
from ringleader.spec import JobSpec
from ringleader.train.seams import Outlet

Work = tuple[Snapshot, Part, Position]


class Saver:
    """Copies at a boundary, writes on a thread of its own, one checkpoint at a time.

    Args:
        place: the URI of the folder of the job's checkpoints; None: there are none.
    """

    def __init__(self, spec: JobSpec, place: str | None, outlet: Outlet) -> None:
        self._every = spec.checkpoint.every_steps
        self._place = place
        self._outlet = outlet
        self._queue: queue.Queue[Work | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None

    def due(self, before: int, step: int) -> bool:
        """Whether one is written of `step`, where the transaction before ended at step `before`."""
        return bool(self._place and self._every) and step // (self._every or 1) > before // (self._every or 1)

    def save(self, state: Any, part: Part, position: Position) -> None:
        """Copy, and go on. Where the one before is not written yet this waits for it, rather than hold more copies."""
        snapshot = Snapshot(state, part)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ringleader-saver", daemon=True)
            self._thread.start()
        since = time.perf_counter()
        self._queue.put((snapshot, part, position))
        waited_s = time.perf_counter() - since
        if waited_s > 1:
            print(
                f"ringleader: training waited {waited_s:.1f} s for the checkpoint before step {position.step}"
            )

    def newest(self) -> Found | None:
        """Where to start from; what cannot be read is told and passed over."""
        if self._place is None:
            return None
        found, passed_over = newest(Folder(self._place))
        for error in passed_over:
            self._outlet.event("checkpoint.skipped", 0, {"why": error.message})
        return found

    def tell_start(self, found: Found, generation: int) -> None:
        data = {"uri": found.place, "step": found.manifest.position.step}
        self._outlet.event("checkpoint.restored", generation, data)

    def close(self) -> None:
        """What was copied is written first."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        assert self._place is not None
        while (work := self._queue.get()) is not None:
            snapshot, part, position = work
            try:
                pieces = tuple(snapshot.write(Folder(self._place), position.name))
            except Exception as error:  # of whatever file system: training goes on
                print(traceback.format_exc())
                data = {"why": f"{type(error).__name__}: {error}", "step": position.step}
                self._outlet.event("checkpoint.failed", position.generation, data)
            else:
                self._outlet.saved(Saved(position, part.number, part.count, pieces, snapshot.took_s))


def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """One state of those of all servers: the first has all but what only another one updates."""
    first = states[0]
    for other in states[1:]:
        for mine, theirs in zip(first["models"], other["models"], strict=True):
            mine.update(theirs)
        for mine, theirs in zip(first["optimizers"], other["optimizers"], strict=True):
            mine["state"].update(theirs["state"])
    return first
