"""For how long supervisors have posted and answered nothing, by this process's own clock, and whom to ask next."""

from collections.abc import Iterable
from datetime import datetime

from ringleader_api.reconciling.round_clock import MOST_S, RoundClock, Who
from ringleader_api.scheduling import Silence

ASKED_AT_ONCE = 100
"""How many are asked in one round. Asking has a time limit of its own."""
PAUSE = 2.0
"""After asking nobody is asked for so many times as long as it took: other jobs need the rounds, too."""


class SupervisorLiveness:
    """What counts is that `heard_at` changes, not what it says: another control plane's clock may have set it. Nobody
    is silent because nobody was there to listen: after `forget` all begin anew.

    Args:
        silent_after_s: who has posted nothing for so long is to be asked about, as often as that.
    """

    def __init__(self, rounds: RoundClock, silent_after_s: float) -> None:
        self._rounds = rounds
        self._silent_after_s = silent_after_s
        self._ask_at_s = 0.0
        self._heard: dict[Who, tuple[datetime | None, float]] = {}
        self._asked_at_s: dict[Who, float] = {}
        self._unanswered_since_s: dict[Who, float] = {}

    def begin_round(self, present: set[Who]) -> None:
        """Only those who are `present` are of interest any more."""
        self._heard = {who: heard for who, heard in self._heard.items() if who in present}
        for known in (self._asked_at_s, self._unanswered_since_s):
            for who in known.keys() - present:
                del known[who]

    def listen(self, who: Who, heard_at: datetime | None) -> Silence:
        """Once a round. Who has never posted is starting, and silent only to the limit of that."""
        before = self._heard.get(who)
        if before is None or before[0] != heard_at:
            self._heard[who] = heard_at, self._rounds.at_s
            self._asked_at_s.pop(who, None)
            self._unanswered_since_s.pop(who, None)
            return Silence(broken=before is not None)
        for_s = self._rounds.at_s - before[1]
        ask = heard_at is not None and self._rounds.at_s - self._known_at_s(who) >= self._silent_after_s
        return Silence(for_s, ask)

    def turn(self, due: Iterable[Who]) -> list[Who]:
        """Who of those that are due is asked in this round: whom nothing has been known of for longest."""
        if self._rounds.at_s < self._ask_at_s:
            return []
        return sorted(due, key=lambda who: (self._known_at_s(who), who))[:ASKED_AT_ONCE]

    def asked(self, who: Who) -> None:
        """Its turn comes again in `silent_after_s`."""
        self._asked_at_s[who] = self._rounds.at_s

    def pause(self, took_s: float) -> None:
        """Asking, and doing what followed from it, took so long."""
        took_s = min(MOST_S, max(0.0, took_s))
        self._ask_at_s = self._rounds.at_s + took_s + PAUSE * took_s

    def unanswered_s(self, who: Who, *, answers: bool) -> float:
        """For how long nobody has answered when asked, now that it has been; an answer and a post end that."""
        if answers:
            self._unanswered_since_s.pop(who, None)
            return 0.0
        return self._rounds.at_s - self._unanswered_since_s.setdefault(who, self._rounds.at_s)

    def forget(self) -> None:
        self._ask_at_s = self._rounds.at_s
        self._heard.clear()
        self._asked_at_s.clear()
        self._unanswered_since_s.clear()

    def _known_at_s(self, who: Who) -> float:
        """When it posted last, or was asked."""
        return max(self._heard[who][1], self._asked_at_s.get(who, 0.0))
