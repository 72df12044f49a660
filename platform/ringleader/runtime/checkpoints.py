"""The supervisor's part in checkpoints: what all writers have written becomes one when its step is settled."""

import queue
import threading
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from ringleader.runtime.messages import Beat, Launch

if TYPE_CHECKING:
    from ringleader.checkpoint.committer import Committer

Tell = Callable[[str, int, dict[str, Any]], None]
LAST_S = 60.0
"""How long the end of an attempt waits for its last checkpoint."""


class Checkpoints:
    """A thread of its own talks to the file system. `take` from any thread."""

    def __init__(self, launch: Launch, tell: Tell) -> None:
        self._launch = launch
        self._tell = tell
        self._queue: queue.SimpleQueue[Beat | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._step = 0
        self.newest_uri = ""

    def take(self, beat: Beat) -> None:
        """What a heartbeat says of checkpoints: files written, and steps that others have gone beyond."""
        if beat.saved and self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="checkpoints", daemon=True)
            self._thread.start()
        if beat.saved or (self._thread is not None and beat.step > self._step):
            self._step = max(self._step, beat.step)
            self._queue.put(beat)

    def finish(self) -> str:
        """Everybody passed the last barrier. Returns the newest checkpoint's URI, or nothing."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(LAST_S)
        return self.newest_uri

    def _serve(self) -> None:
        # Only now: the file systems' library takes its time, and a supervisor starts fast.
        from ringleader.checkpoint.committer import Committer
        from ringleader.checkpoint.folder import Folder

        launch = self._launch
        committer = Committer(
            Folder(launch.checkpoints),
            keep=launch.spec.checkpoint.keep,
            spec=launch.spec.model_dump(mode="json"),
        )
        last = False
        while not last:
            beat = self._queue.get()
            last = beat is None
            for saved in beat.saved if beat is not None else ():
                committer.add(saved)
            # Whoever has applied a step had everybody's contribution to it: all had applied the one before.
            self._settle(committer, inf if beat is None else beat.step - 1)

    def _settle(self, committer: "Committer", step: float) -> None:
        try:
            committed = committer.settle(step)
        except Exception as error:  # of whatever file system: the next one may be written
            self._tell("checkpoint.failed", 0, {"why": str(error)})
            return
        if committed is None:
            return
        self.newest_uri = committed.uri
        data = {
            "step": committed.manifest.position.step,
            "uri": committed.uri,
            "size_bytes": committed.size_bytes,
            "copied_s": round(committed.copied_s, 4),
            "removed": list(committed.removed),
        }
        self._tell("checkpoint.saved", committed.manifest.position.generation, data)
