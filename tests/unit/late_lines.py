"""What the tests of lines behind loops note beside the program, which cannot see it: who ran which lines, and when."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import FaultPlan
from play import Play
from test_leaving import job
from threaded_cast import Killed, ThreadedCast
from undisturbed import undisturbed
from waiting import wait_for

from ringleader.elastic.plan import Plan
from ringleader.train import Session

GUARD_S, ASKED_BY = 20.0, 13
Lines = Callable[["Notes", str, int], None]
_now: list["Notes"] = []


def nothing(_notes: "Notes", _me: str, _epoch: int) -> None:
    """Lines that take no time."""


class Notes:
    """Of one play. `lines` run behind every loop, in every worker.

    Attributes:
        awaited: who shall have asked a member by the step `ASKED_BY`.
        ran: (worker, epoch, whether it had a seat) of all lines, in the order in which they began.
    """

    def __init__(
        self, program: Callable[[Session], None], sync: dict[str, Any], lines: Lines = nothing
    ) -> None:
        self.program = program
        self.sync = sync
        self.lines = lines
        self.stage: ThreadedCast | None = None
        self.awaited = ""
        self.ran: list[tuple[str, int, bool]] = []
        self.steps: dict[str, int] = {}

    def play(self, faults: FaultPlan, place: Path, *, least: int = 1, most: int = 2) -> Play:
        _now[:] = [self]
        spec = job(self.sync, workers={"min": least, "max": most})
        self.stage = ThreadedCast(spec, self.program, faults, artifacts=place, joiners_follow=True)
        return self.stage.play()

    def undisturbed(self) -> str:
        """The digest of one process."""
        _now[:] = [Notes(self.program, self.sync)]
        return undisturbed(job(self.sync, workers={"min": 1, "max": 1}), self.program)[0].digest

    @property
    def formed(self) -> list[Plan]:
        return self.stage.formed if self.stage is not None else []

    @property
    def short(self) -> bool:
        """Whether too few are left, and wait."""
        assert self.stage is not None
        return self.stage._state.short_since is not None

    def donors_of(self, who: str) -> list[str]:
        """Whom it was told to ask so far."""
        assert self.stage is not None
        return [pair.donor for pair in self.stage._play.pairs if pair.worker == who]

    def shrink(self, count: int) -> None:
        """So many workers shall be left, from the next step on."""
        assert self.stage is not None
        self.stage._resizes.append((0, count, count))

    def committed(self, me: str, step: int) -> None:
        """Whoever is alone goes on only when somebody is about to ask."""
        self.steps[me] = step
        if self.awaited and step == ASKED_BY:
            wait_for("a question", lambda: self.donors_of(self.awaited), GUARD_S)

    def begun(self, me: str, epoch: int) -> None:
        seated = self.stage is None or any(me in plan.members for plan in self.formed)
        self.ran.append((me, epoch, seated))
        self.lines(self, me, epoch)

    def lines_of(self, me: str) -> list[int]:
        return [epoch for who, epoch, _ in self.ran if who == me]

    def seatless_lines_of(self, me: str) -> list[int]:
        return [epoch for who, epoch, seated in self.ran if who == me and not seated]

    def newest(self, *, but: str) -> int:
        """The newest step that anybody else has committed."""
        return max([step for who, step in self.steps.items() if who != but], default=0)

    def await_steps(self, count: int, me: str) -> None:
        """So many more steps of the others."""
        until = self.newest(but=me) + count
        wait_for(f"step {until} of the others", lambda: self.newest(but=me) >= until, GUARD_S)

    def kill(self, who: str) -> None:
        assert self.stage is not None
        self.stage._processes[who].kill()

    def dead(self, who: str) -> bool:
        assert self.stage is not None
        return bool(self.stage._processes[who].dead)


def watch(session: Session) -> None:
    """At the top of a program."""
    # Nothing of the play around the programs, which all members share here, may be a variable of theirs.
    session.on_commit(lambda: _committed(session.global_step))


def _committed(step: int) -> None:
    _now[0].committed(threading.current_thread().name, step)


def behind(epoch: int) -> None:
    """Behind its loops."""
    _now[0].begun(threading.current_thread().name, epoch)


def die(notes: Notes, me: str) -> None:
    notes.kill(me)
    raise Killed
