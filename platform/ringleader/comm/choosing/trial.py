"""The trial of schedules: those with close forecasts sum a bucket a few times, all members together.

The simulator does not know how the ranks of one machine wait for its cores: with fewer cores than ranks, the kernel's
choice of whom to run next decides between schedules whose messages and bytes cost about the same.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from ringleader.comm.choosing.choice import alike, forecasts
from ringleader.comm.communicator import BULK, Communicator
from ringleader.comm.schedules import SCHEDULES, RankPart, Step
from ringleader.comm.simulator import ClusterCosts, TriedSchedule

NEAR, MOST = 2.5, 4
"""The largest forecast that is tried, as a multiple of the least, and the most schedules that are."""

BUDGET_S = 0.4
"""Seconds for all turns at the start of a job; one or two first sums of each schedule come before them."""

TURN_S, TURNS = 2e-3, 9
"""Shorter sums are made several times a turn. After so many turns those beyond `DOUBT` are left out, and the others
go on while there is time: a disturbance of a few turns must not decide."""

DOUBT = 2.0
"""The multiple of the least median beyond which a schedule is left out. Closer ones take turns at being the
faster."""

Way = Callable[[str], None]
"""Sums once with the schedule of that name; every member calls it."""


def try_out(
    parts: Iterable[RankPart],
    costs: ClusterCosts,
    *,
    canonical: bool,
    element_bytes: int,
    way: Callable[[RankPart], Way],
    tell: Callable[[Tensor], Tensor],
    clock: Callable[[], float] = time.perf_counter,
) -> ClusterCosts:
    """Try schedules for these sums, and return the costs with the fastest ones added. Every member calls this at the
    same time and gets the same answer.

    Args:
        parts: this rank's parts in the sums, in the same order on all ranks; the first of each size is tried.
        way: makes the function that sums a part.
        tell: returns the sum of everybody's values; everybody calls it.
        clock: seconds.
    """
    questions: dict[RankPart, RankPart] = {}
    for part in parts:
        questions.setdefault(alike(part), part)
    names = {like: near(like, costs, canonical=canonical, element_bytes=element_bytes) for like in questions}
    open_ones = [like for like in questions if len(names[like]) > 1]
    tried = []
    for like in open_ones:
        trial = _Trial(names[like], way(questions[like]), tell, clock)
        tried.append(TriedSchedule(like, canonical, element_bytes, trial.soonest(BUDGET_S / len(open_ones))))
    return replace(costs, tried=(*costs.tried, *tried))


def sums(communicator: Communicator, part: RankPart, like: Tensor, tag: int) -> Way:
    """A function that sums zeros, over rows like those of a bucket."""
    count = max(1, len(part.rows[part.rank]))
    rows = [torch.zeros(part.length, dtype=like.dtype, device=like.device) for _ in range(count)]
    known: dict[str, tuple[Step, ...]] = {}

    def way(name: str) -> None:
        if name not in known:
            known[name] = tuple(SCHEDULES[name].steps(part))
        # On the lane of the buckets, with its scratch memory, as in a step.
        ticket = communicator.submit(known[name], rows, tag=tag, phase="probe", bucket=None, lane=BULK)
        communicator.wait([ticket])

    return way


def near(part: RankPart, costs: ClusterCosts, *, canonical: bool, element_bytes: int) -> list[str]:
    """The schedules that may be the fastest by their forecasts, best first; of those that take the same steps only
    one."""
    found = forecasts(part, costs, canonical=canonical, element_bytes=element_bytes)
    least = min(forecast.seconds for forecast in found.values())
    names: dict[tuple[object, ...], str] = {}
    for name in sorted(found, key=lambda name: (found[name].seconds, found[name].messages, name)):
        if found[name].seconds <= NEAR * least:
            steps = SCHEDULES[name].steps
            # By the steps of all ranks: at this one alone two schedules may look equal that differ at
            # another, and members would keep different names.
            names.setdefault(tuple(tuple(steps(replace(part, rank=r))) for r in range(part.world)), name)
    return list(names.values())[:MOST]


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trial of schedules that make the same sum."""

    names: Sequence[str]
    way: Way
    tell: Callable[[Tensor], Tensor]
    clock: Callable[[], float]

    def soonest(self, budget_s: float) -> str:
        """The schedule with the least median; the number of turns follows from how long each takes."""
        self.way(self.names[0])  # the first sum finds cold memory
        medians = self._agreed([self._seconds(name, 1) for name in self.names])
        # At most 20 sums a turn, also where the clock saw no time pass.
        counts = [max(1, int(TURN_S / max(seconds, TURN_S / 20))) for seconds in medians]
        took: list[list[float]] = [[] for _ in self.names]
        near = list(range(len(self.names)))
        while len(near) > 1:
            # From agreed numbers alone: members whose turns differed would wait for each other for ever.
            turn_s = max(TURN_S / 20, sum(counts[place] * medians[place] for place in near))
            turns = min(TURNS, int(budget_s / turn_s))
            if turns < 2:
                break
            self._take_turns(near, counts, turns, took)
            budget_s -= turns * turn_s
            medians = self._agreed([median(one) for one in took])
            # Only among those still in: the others were measured at another time, perhaps a quieter one.
            least = min(medians[place] for place in near)
            near = [place for place in near if medians[place] <= DOUBT * least]
        return self.names[min(near, key=medians.__getitem__)]

    def _take_turns(
        self, places: Sequence[int], counts: Sequence[int], turns: int, took: Sequence[list[float]]
    ) -> None:
        """Record the seconds of each schedule's sums; whichever begins a turn is the last in the next one."""
        for turn in range(turns):
            first = turn % len(places)
            for place in (*places[first:], *places[:first]):
                took[place].append(self._seconds(self.names[place], counts[place]))

    def _seconds(self, name: str, count: int) -> float:
        since = self.clock()
        for _ in range(count):
            self.way(name)
        return (self.clock() - since) / count

    def _agreed(self, seconds: Sequence[float]) -> list[float]:
        """The mean over all members, the same everywhere."""
        # The last entry counts the members.
        *total, members = self.tell(torch.tensor([*seconds, 1.0], dtype=torch.float64)).tolist()
        return [one / members for one in total]
