"""The silence of supervisors: how long each has posted and answered nothing, by this process's own clock, and which to
ask next."""

from collections.abc import Iterable
from datetime import datetime

from ringleader_api.reconciling.round_clock import MOST_S, RoundClock, Who
from ringleader_api.scheduling import Silence

ASKED_AT_ONCE = 100
"""The most supervisors asked in one round. The questions have a time limit of their own, which all share."""
PAUSE = 2.0
"""The pause after asking, as a multiple of the time it took: other jobs need the rounds, too."""


class SupervisorLiveness:
    """Tracks posts by changes of `heard_at`, not by its value, which another control plane's clock may have set. No
    supervisor is silent because nobody was there to listen: after `forget` all begin anew.

    Args:
        silent_after_s: a supervisor that posts nothing for so long is asked whether it lives, as often as that.
    """

    def __init__(self, rounds: RoundClock, silent_after_s: float) -> None:
        self._rounds = rounds
        self._silent_after_s = silent_after_s
        self._ask_at_s = 0.0
        self._heard: dict[Who, tuple[datetime | None, float]] = {}
        self._asked_at_s: dict[Who, float] = {}
        self._unanswered_since_s: dict[Who, float] = {}

    def begin_round(self, present: set[Who]) -> None:
        """Forget all but those who are `present`."""
        self._heard = {who: heard for who, heard in self._heard.items() if who in present}
        for known in (self._asked_at_s, self._unanswered_since_s):
            for who in known.keys() - present:
                del known[who]

    def listen(self, who: Who, heard_at: datetime | None) -> Silence:
        """Record one look at a supervisor, once a round. One that has never posted is starting, and silent only to the
        limit of that."""
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
        """The supervisors asked in this round, of those that are due: the ones of which nothing has been known for
        longest."""
        if self._rounds.at_s < self._ask_at_s:
            return []
        # Then by name, so that a tie is decided alike in every round.
        return sorted(due, key=lambda who: (self._known_at_s(who), who))[:ASKED_AT_ONCE]

    def asked(self, who: Who) -> None:
        """Record that it was asked: its turn comes again in `silent_after_s`."""
        self._asked_at_s[who] = self._rounds.at_s

    def pause(self, took_s: float) -> None:
        """Pause the questions, which took so long together with what followed from them."""
        # Bounded as a round is: a machine that stood still meanwhile would silence the questions for as long.
        took_s = min(MOST_S, max(0.0, took_s))
        self._ask_at_s = self._rounds.at_s + took_s + PAUSE * took_s

    def unanswered_s(self, who: Who, *, answers: bool) -> float:
        """The seconds since its first question without an answer, now that it has been asked; an answer or a post ends
        the count."""
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
        """The moment of its last post or question, whichever is later."""
        return max(self._heard[who][1], self._asked_at_s.get(who, 0.0))
