"""Who is slow: by its own computing, over some windows, and not by what it waits for."""

import random

from ringleader.runtime.messages import ProcessIdentity
from ringleader.runtime.supervisor.stragglers import Straggler, StragglerDetector
from ringleader.runtime.worker.reporter import WorkerReporter

THIRDS = {"a": 3 / 8, "b": 3 / 8, "c": 2 / 8}


class Race:
    """Workers that compute steps; `step_s` is what a whole step would take each of them."""

    def __init__(self, shares: dict[str, float] = THIRDS) -> None:
        self.pace, self.shares, self.now = StragglerDetector(), shares, 0.0
        self.worked, self.worked_s = dict.fromkeys(shares, 0), dict.fromkeys(shares, 0.0)

    def go(
        self, until: float, step_s: dict[str, float], generation: int = 1
    ) -> list[tuple[float, Straggler]]:
        found = []
        while self.now < until:
            self.now += 0.5
            for worker, share in self.shares.items():
                self.worked[worker] += 2
                self.worked_s[worker] += 2 * step_s[worker] * share
                self.pace.take(
                    worker,
                    generation=generation,
                    worked_s=self.worked_s[worker],
                    worked=self.worked[worker],
                    now=self.now,
                )
            found += [(self.now, straggler) for straggler in self.pace.look(self.now, self.shares)]
        return found


def test_who_takes_more_than_twice_the_others_median_for_two_windows_is_slow_and_told_once():
    race = Race()
    even = {"a": 0.2, "b": 0.2, "c": 0.2}
    assert race.go(20.0, even) == []
    found = race.go(60.0, {**even, "c": 0.5})
    assert [
        (straggler.worker, round(straggler.step_s / straggler.others_s, 6)) for _, straggler in found
    ] == [("c", 2.5)]
    assert found[0][0] < 36.0
    assert round(found[0][1].others_s, 6) == round(0.2 / 3, 6), "for a third of a step"


def test_a_worker_with_more_shards_is_not_slow():
    assert Race({"a": 6 / 8, "b": 1 / 8, "c": 1 / 8}).go(60.0, {"a": 0.2, "b": 0.2, "c": 0.2}) == []


def test_one_window_makes_nobody_slow():
    race = Race()
    even = {"a": 0.2, "b": 0.2, "c": 0.2}
    race.go(10.5, even)
    assert race.go(15.5, {**even, "b": 2.0}) + race.go(40.0, even) == []


def test_between_the_two_bounds_a_slow_one_stays_slow_and_below_both_it_may_become_so_again():
    race = Race()
    even = {"a": 0.2, "b": 0.2, "c": 0.2}
    slow, between = {**even, "a": 0.6}, {**even, "a": 0.36}
    assert len(race.go(30.0, slow)) == 1
    assert race.go(50.0, between) + race.go(70.0, slow) == []
    race.go(90.0, even)
    assert len(race.go(120.0, slow)) == 1


def test_noise_makes_nobody_slow():
    draw, race = random.Random(0), Race()
    for second in range(600):
        assert race.go(second, {w: 0.2 * draw.uniform(0.6, 1.4) for w in race.shares}) == []


def test_a_new_generation_begins_a_new_window():
    race = Race()
    race.go(4.0, {"a": 0.2, "b": 0.2, "c": 9.0})
    race.worked, race.worked_s = dict.fromkeys(THIRDS, 0), dict.fromkeys(THIRDS, 0.0)
    assert race.go(60.0, {"a": 0.2, "b": 0.2, "c": 0.2}, generation=2) == []


def test_a_worker_counts_its_own_computing_from_the_first_commit_on_and_no_waiting():
    reporter = WorkerReporter("w0", ProcessIdentity(1, "node", "127.0.0.1"), lambda: None)

    def says(step: int, phase: str) -> None:
        reporter.progress(step=step, total_steps=None, epoch=0, phase=phase, rows=1)

    reporter.enter(1)
    for step in range(4):
        says(step, "forward")
        says(step, "exchange")
        says(step + 1, "committed")
    beat = reporter.beat()
    assert beat.worked == 3
    waited = reporter.beat()
    assert waited.worked_s == beat.worked_s
