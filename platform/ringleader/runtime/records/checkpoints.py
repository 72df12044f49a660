"""The supervisor's part in checkpoints: the files of all writers become one once their step is settled."""

import pickle
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from ringleader.accounts import files_as
from ringleader.checkpoint.manifest import CheckpointPosition, SavedPart
from ringleader.runtime.messages import AttemptLaunch, Heartbeat

if TYPE_CHECKING:
    from ringleader.checkpoint.committer import Committer


@dataclass(frozen=True, slots=True)
class SavedParts:
    """Files that members have written, and the step up to which nothing can be rolled back."""

    saved: tuple[SavedPart, ...]
    settled: int


Tell = Callable[[str, int, dict[str, Any]], None]
LAST_S = 60.0
"""The longest wait of an attempt's end for its last checkpoint."""
AGAIN_S = (1.0, 2.0, 4.0)
"""The pauses before the last checkpoint is tried again: no later one takes its place."""


class AttemptCheckpoints:
    """The checkpoints of an attempt. A thread of its own talks to the file system; `take` is called from any thread.

    Args:
        kept: what the supervisor before this one had `kept`.

    Attributes:
        slowest_s: the longest that a writer has taken for the copy and the writing so far.
    """

    def __init__(self, launch: AttemptLaunch, tell: Tell, *, kept: bytes | None = None) -> None:
        self._launch = launch
        self._account = launch.run_as.account if launch.run_as else None
        self._tell = tell
        self._queue: queue.SimpleQueue[SavedParts | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._step = self._settled = self._recorded = 0
        self._heard = threading.Condition()
        self._parts: dict[CheckpointPosition, int] = {}  # how many writers are still to be heard of
        self._open: tuple[SavedPart, ...] = ()
        self.newest_uri, self.slowest_s = "", 0.0
        self._why = ""
        if kept is not None:
            self._open, self._parts, self.newest_uri, self.slowest_s, self._recorded = pickle.loads(kept)  # noqa: S301 - our own file
        # Their writers reported them to the process before this one, and do not again.
        if self._open:
            self._begin()
            self._queue.put(SavedParts(self._open, _settled(self._open)))

    def kept(self) -> bytes:
        """The state for the supervisor after this one: files that are no checkpoint yet, the writers still to be heard
        of, and what is recorded."""
        with self._heard:
            return pickle.dumps((self._open, self._parts, self.newest_uri, self.slowest_s, self._recorded))

    def take(self, beat: Heartbeat, recorded_step: int) -> bool:
        """Take a heartbeat's part in checkpoints: files written, and steps that others have gone beyond. Returns
        whether there is more to be `kept`.

        Args:
            recorded_step: the records of all steps below it are here: a checkpoint must not know more than they do.
        """
        if beat.saved:
            self._begin()
        news = self._listen(beat, recorded_step)
        self._step = max(self._step, beat.step)
        # Whoever has applied a step had everybody's contribution to it: all had applied the one before.
        settled = max(min(self._step, recorded_step) - 1, _settled(beat.saved))
        # Before the first files there is nothing to settle, and no thread that would.
        if beat.saved or (self._thread is not None and settled > self._settled):
            self._settled = settled
            self._queue.put(SavedParts(beat.saved, settled))
        return news

    def began_with(self, step: int) -> None:
        """Note the step to go on from: those up to it were recorded by earlier attempts, or the supervisor before."""
        with self._heard:
            self._recorded = max(self._recorded, step + 1)
            self._heard.notify_all()

    def await_complete(self, generation: int) -> None:
        """Wait until all writers of that generation have written and its step's records are here, at most `LAST_S`."""
        with self._heard:
            self._heard.wait_for(lambda: self._complete(generation), LAST_S)

    def finish(self) -> str:
        """Commit what is left behind the last barrier. Returns the newest checkpoint's URI; empty without one."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(LAST_S)
        return self.newest_uri

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="checkpoints", daemon=True)
            self._thread.start()

    def _listen(self, beat: Heartbeat, recorded_step: int) -> bool:
        with self._heard:
            self._recorded = max(self._recorded, recorded_step)
            self._heard.notify_all()
        if not beat.saved:
            return False
        with self._heard:
            self._open += beat.saved
            self.slowest_s = max([self.slowest_s, *(one.copied_s + one.written_s for one in beat.saved)])
            self._count(beat.saved)
            self._heard.notify_all()
        return True

    def _count(self, saved: tuple[SavedPart, ...]) -> None:
        for one in saved:
            # A later step takes the place of earlier ones, of which a lost writer may never tell.
            self._parts = {at: left for at, left in self._parts.items() if at.step >= one.position.step}
            self._parts[one.position] = self._parts.get(one.position, one.count) - 1

    def _complete(self, generation: int) -> bool:
        written = (at for at, left in self._parts.items() if at.generation == generation and not left)
        return any(at.step < self._recorded for at in written)

    def _serve(self) -> None:
        committer: Committer | None = None
        early: list[SavedPart] = []
        while (news := self._queue.get()) is not None:
            # Kept until there is a committer: the folder may not answer yet.
            early += news.saved
            # A folder that does not answer is told of again with new files only, not with each step that settles.
            committer = committer or self._committer(told=not news.saved)
            if committer is not None:
                _add(committer, early)
                self._settle(committer, news.settled)
        committer = committer or self._committer()
        if committer is not None:
            _add(committer, early)
            # Whatever its step: behind the last barrier nothing is rolled back.
            for again_s in (*AGAIN_S, None):
                if self._settle(committer, inf) or again_s is None:
                    break
                time.sleep(again_s)

    def _committer(self, *, told: bool = False) -> "Committer | None":
        """The committer of the job's folder; None while that does not answer.

        Args:
            told: the failure was reported already.
        """
        # Only now: the file systems' library takes its time, and a supervisor starts fast.
        from ringleader.checkpoint.committer import Committer
        from ringleader.checkpoint.folder import Folder

        spec = self._launch.spec
        try:
            with files_as(self._account):
                folder = Folder(self._launch.checkpoints)
        except Exception as error:  # of whatever file system
            if not told:
                self._tell("checkpoint.failed", 0, {"why": str(error)})
            # Nothing is lost by it: the files become a checkpoint later.
            return None
        return Committer(folder, keep=spec.checkpoint.keep, spec=spec.model_dump(mode="json"))

    def _settle(self, committer: "Committer", step: float) -> bool:
        """Commit what is settled; whether nothing is left to be done. The same failure is reported once."""
        try:
            # With the account's rights: a link that the job puts in a file's place must lead to nothing of the owner's.
            with files_as(self._account):
                committed = committer.settle(step)
        except Exception as error:  # of whatever file system: it may be done with the next news
            if (why := str(error)) != self._why:
                self._tell("checkpoint.failed", 0, {"why": why})
            self._why = why
            return False
        self._why = ""
        if committed is None:
            return True
        with self._heard:
            self.newest_uri = committed.uri
            self._open = tuple(s for s in self._open if s.position.order > committed.manifest.position.order)
        data = {
            "step": committed.manifest.position.step,
            "uri": committed.uri,
            "size_bytes": committed.size_bytes,
            "copied_s": round(committed.copied_s, 4),
            "removed": list(committed.removed),
        }
        if committed.not_removed:
            data["not_removed"] = committed.not_removed
        self._tell("checkpoint.saved", committed.manifest.position.generation, data)
        return True


def _settled(written: tuple[SavedPart, ...]) -> int:
    """The newest step that its writers report as settled; 0 without one. Records that are not here yet are in it."""
    return max((saved.position.step for saved in written if saved.settled), default=0)


def _add(committer: "Committer", written: list[SavedPart]) -> None:
    """Add all that is in `written` to the committer, and empty it."""
    for saved in written:
        committer.add(saved)
    written.clear()
