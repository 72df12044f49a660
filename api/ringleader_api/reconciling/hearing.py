"""For how long supervisors have posted and answered nothing, by this process's own clock."""

from datetime import datetime

from ringleader_api.clock import Clock
from ringleader_api.scheduling import Silence

MOST_S = 5.0
"""What a round counts for at most. One that comes later says that it was this process that stood still."""
Who = tuple[str, int]


class Hearing:
    """What counts is that `heard_at` changes, not what it says: another control plane's clock may have set it. Nobody
    is silent because nobody was there to listen: after `forget` all begin anew.

    Args:
        silent_after_s: who has posted nothing for so long is to be asked about, as often as that.
    """

    def __init__(self, now: Clock, silent_after_s: float) -> None:
        self._now = now
        self._silent_after_s = silent_after_s
        self._round_at: datetime | None = None
        self._at_s = 0.0
        self._heard: dict[Who, tuple[datetime | None, float]] = {}
        self._asked_at_s: dict[Who, float] = {}
        self._unanswered_since_s: dict[Who, float] = {}

    def begin_round(self, present: set[Who]) -> None:
        """Only those who are `present` are of interest any more."""
        now = self._now()
        if self._round_at is not None:
            self._at_s += min(MOST_S, max(0.0, (now - self._round_at).total_seconds()))
        self._round_at = now
        self._heard = {who: heard for who, heard in self._heard.items() if who in present}
        for known in (self._asked_at_s, self._unanswered_since_s):
            for who in known.keys() - present:
                del known[who]

    def listen(self, who: Who, heard_at: datetime | None) -> Silence:
        """Once a round. Who has never posted is starting, and silent only to the limit of that."""
        before = self._heard.get(who)
        if before is None or before[0] != heard_at:
            self._heard[who] = heard_at, self._at_s
            self._asked_at_s.pop(who, None)
            self._unanswered_since_s.pop(who, None)
            return Silence(broken=before is not None)
        for_s = self._at_s - before[1]
        ask = heard_at is not None and for_s >= self._silent_after_s and self._may_ask(who)
        return Silence(for_s, ask)

    def unanswered_s(self, who: Who, *, answers: bool) -> float:
        """For how long nobody has answered when asked, now that it has been; an answer and a post end that."""
        if answers:
            self._unanswered_since_s.pop(who, None)
            return 0.0
        return self._at_s - self._unanswered_since_s.setdefault(who, self._at_s)

    def forget(self) -> None:
        self._round_at = None
        self._heard.clear()
        self._asked_at_s.clear()
        self._unanswered_since_s.clear()

    def _may_ask(self, who: Who) -> bool:
        """Asking may take seconds."""
        if self._at_s - self._asked_at_s.get(who, float("-inf")) < self._silent_after_s:
            return False
        self._asked_at_s[who] = self._at_s
        return True
