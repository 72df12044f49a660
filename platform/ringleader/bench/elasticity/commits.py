"""Commits as workers write them down, and the cost of a kill read from them, by the same rule for every system.

All times are CLOCK_MONOTONIC, which the processes of one machine share.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Self, TypeVar

from ringleader.bench.broken import BrokenPromise, PeerFailed

T = TypeVar("T")
POLL_S = 0.02
QUIET_S = 0.5
"""Seconds between two looks for a recovery: reading all commits takes a core for tens of milliseconds, and the times
are those that the workers wrote down."""
STEADY_COMMITS = 10
"""Commits of a membership, on every member, before it counts as steady."""
LEAST_MEMBERS = 2
"""Members left of three; a membership of which fewer have been heard is still coming together."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One step committed by one process.

    `membership` is a number never used again: it changes when somebody leaves or joins.
    """

    pid: int
    step: int
    membership: int
    at: float


class CommitLog:
    """A worker's side: one short line a commit, in a file of its own, so that a killed writer loses nothing."""

    def __init__(self, folder: Path) -> None:
        self._pid = os.getpid()
        # Line-buffered: the kernel has each line before the process can be killed.
        self._file = (folder / f"{self._pid}.commits").open("a", buffering=1, encoding="ascii")

    def committed(self, *, step: int, membership: int) -> None:
        self._file.write(f"{step} {membership} {time.monotonic():.6f}\n")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class MeasuredRecovery:
    """One kill. `seconds`: kill → next committed step, less one undisturbed step of the new membership."""

    seconds: float
    steps_lost: int
    survivors_stayed: bool


class Commits:
    """Everything written so far under a folder."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.all = sorted(commits, key=lambda commit: commit.at)

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls([commit for path in folder.glob("*.commits") for commit in _parse(path)])

    def of(self, pids: Collection[int]) -> "Commits":
        return Commits([commit for commit in self.all if commit.pid in pids])

    def since(self, at: float) -> "Commits":
        return Commits([commit for commit in self.all if commit.at > at])

    def newest(self) -> int | None:
        return self.all[-1].membership if self.all else None

    def members(self, membership: int) -> set[int]:
        """The processes that committed at least STEADY_COMMITS steps in this membership."""
        pids = [commit.pid for commit in self.all if commit.membership == membership]
        return {pid for pid in pids if pids.count(pid) >= STEADY_COMMITS}

    def recovery(self, killed_at: float, victim: int) -> MeasuredRecovery | None:
        """The cost of the kill; None while the new membership is not yet steady.

        The next committed step is the first one of a membership that is not the victim's, once every process that is
        in it has committed it. A step that was already reduced when the victim died does not count.
        """
        old = [commit for commit in self.all if commit.at <= killed_at][-1].membership
        came = [c.membership for c in self.all if c.at > killed_at and c.membership != old]
        new = [commit for commit in self.all if came and commit.membership == came[0]]
        members = {commit.pid for commit in new}
        if len(members) < LEAST_MEMBERS or members != self.members(came[0]):
            return None
        first = max(min(c.at for c in new if c.pid == pid) for pid in members)
        # Of the new membership: fewer members may take longer for a step.
        undisturbed = median(
            b - a for pid in members for a, b in pairwise([c.at for c in new if c.pid == pid])
        )
        newest = max(commit.step for commit in self.all if commit.membership == old)
        lost = newest + 1 - min(commit.step for commit in new)
        survivors = {commit.pid for commit in self.all if commit.membership == old} - {victim}
        return MeasuredRecovery(first - killed_at - undisturbed, max(0, lost), survivors <= members)

    def check_each_once(self) -> None:
        """Check that every step was committed by some process, and by none twice; one that heals over a step does not
        commit it. Raises BrokenPromise naming the first step that breaks this."""
        for pid in sorted({commit.pid for commit in self.all}):
            steps = [commit.step for commit in self.all if commit.pid == pid]
            for a, b in pairwise(steps):
                # A gap is no error: the process has healed over those steps.
                if b <= a:
                    raise BrokenPromise(
                        f"process {pid} committed step {b} after step {a}: a step was doubled."
                    )
        for a, b in pairwise(sorted({commit.step for commit in self.all})):
            if b != a + 1:
                raise BrokenPromise(f"nobody committed a step between {a} and {b}: steps were lost.")


def wait_for(what: str, look: Callable[[], T | None], deadline_s: float, check: Callable[[], None]) -> T:
    """Poll until `look` returns a value. Raises PeerFailed after the deadline, or whatever `check` raises."""
    until = time.monotonic() + deadline_s
    while (found := look()) is None:
        check()
        if time.monotonic() > until:
            raise PeerFailed(f"{what} did not happen within {deadline_s:g} s.")
        time.sleep(POLL_S)
    return found


def await_recovery(
    read: Callable[[], Commits],
    killed_at: float,
    victim: int,
    deadline_s: float,
    check: Callable[[], None],
) -> MeasuredRecovery:
    """Wait for the cost of a kill. Raises PeerFailed after the deadline, or whatever `check` raises."""

    def look() -> MeasuredRecovery | None:
        time.sleep(QUIET_S)
        return read().recovery(killed_at, victim)

    return wait_for("a commit after the kill", look, deadline_s, check)


def _parse(path: Path) -> list[Commit]:
    """The commits in a worker's file, whole lines only: the last one may be half written."""
    pid = int(path.stem)
    lines = path.read_text(encoding="ascii").split("\n")[:-1]
    return [
        Commit(pid, int(step), int(membership), float(at))
        for step, membership, at in (line.split() for line in lines)
    ]
