"""The ways of keeping workers in step, side by side: each trains the same network on CIFAR-10, on two nodes.

Whole trainings cannot take turns, so the ring runs first and last: what lies between its two rows is the machine's.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from ringleader.bench.broken import BrokenPromise, PeerFailed
from ringleader.bench.exchange.nodes import (
    NODES,
    WORKERS,
    WORKERS_A_NODE,
    Nodes,
    link_bytes,
    no_bytes,
    two_nodes,
)
from ringleader.bench.line import Cell, Figure
from ringleader.bench.processes.members import train
from ringleader.bench.registry import Wish
from ringleader.bench.training.course import (
    GLOBAL_BATCH,
    LEARNING_RATE,
    MOMENTUM,
    LossPoint,
    TimedTraining,
    save_rows,
)
from ringleader.bench.training.modes import MODES, REFERENCE, ModeCase
from ringleader.bench.training.picture import Curve, draw
from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec

CASES = tuple(mode.name for mode in MODES)
AGAIN = f"{REFERENCE.name}-again"
START_S = 60.0
PICTURE = Path("bench-sync.svg")
BUDGET_S, LONGEST_S, FULL_S = 200.0, 25.0, 90.0
"""Seconds of training for all modes together, so that a default run stays below ten minutes: each mode takes as long
again to start, to evaluate and to end its last stretch. For one mode; for one with --full."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The points at which the losses of all modes are read, and whether bytes were counted."""

    samples: int
    limit_s: float
    counted: bool


@dataclass(frozen=True, slots=True)
class ModeRun:
    """One training of one mode."""

    name: str
    mode: ModeCase
    workers: Sequence[TimedTraining]

    @property
    def points(self) -> Sequence[LossPoint]:
        return self.workers[0].points

    @property
    def rows_s(self) -> float:
        return self.points[-1].samples / self.points[-1].seconds

    @property
    def waiting(self) -> float:
        """The share of the workers' training time in which they were blocked."""
        return mean(worker.waiting for worker in self.workers)

    @property
    def crossed_bytes(self) -> float:
        """Bytes between the nodes, both ways, for one global batch."""
        # There are two nodes: all that crosses is on the first one's link.
        return self.workers[0].crossed_bytes * GLOBAL_BATCH / self.points[-1].samples

    def loss_after_rows(self, samples: int) -> float:
        # Stretches are equal, so every mode was evaluated at exactly this number of rows.
        return next(point.loss for point in self.points if point.samples == samples)

    def loss_after_s(self, seconds: float) -> float:
        """The loss on the straight line between the evaluations before and after."""
        later = next(n for n, point in enumerate(self.points) if point.seconds >= seconds)
        a, b = self.points[max(0, later - 1)], self.points[later]
        # The first point may be the later one already: then there is no line to follow.
        share = (seconds - a.seconds) / (b.seconds - a.seconds) if b is not a else 0.0
        return a.loss + share * (b.loss - a.loss)


def run(wish: Wish) -> Iterator[Figure]:
    """Measure five figures a mode and draw PICTURE. Raises BrokenPromise at the end when a mode failed."""
    wanted = [mode for mode in MODES if mode is not REFERENCE and wish.wants(mode.name)]
    turns = [(REFERENCE.name, REFERENCE), *((mode.name, mode) for mode in wanted), (AGAIN, REFERENCE)]
    limit_s = FULL_S if wish.full else min(LONGEST_S, BUDGET_S / len(turns))
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder, two_nodes() as nodes:
        rows = Path(folder) / "rows.pt"
        what = save_rows(rows)
        course = TimedTraining(rows, limit_s, LEARNING_RATE, no_bytes if nodes.unlinked else link_bytes)
        runs = list(_trainings(turns, nodes, course, wish.seed, failed))
    if not runs or runs[0].mode is not REFERENCE or runs[-1].mode is not REFERENCE:
        raise PeerFailed("there is nothing to compare with: " + "; ".join(failed))
    # Losses at equal rows need a number of rows that every run has reached.
    scale = Scale(min(run.points[-1].samples for run in runs), limit_s, counted=not nodes.unlinked)
    first, *others = _figures(runs, scale)
    yield replace(first, settings=_settings(what, scale, nodes))
    yield from others
    draw(PICTURE, [_curve(run, limit_s) for run in runs if run.name != AGAIN], _caption(what))
    _say(f"the picture, loss over seconds, is in {PICTURE.resolve()}")
    if failed:
        raise BrokenPromise("; ".join(failed))


def _trainings(
    turns: Sequence[tuple[str, ModeCase]], nodes: Nodes, course: TimedTraining, seed: int, failed: list[str]
) -> Iterator[ModeRun]:
    """Train one mode after the other; a failure is printed, and the others still have their turn."""
    for name, mode in turns:
        # A copy: a course collects its own points.
        own = replace(course, rate=course.rate * mode.rate)
        try:
            ended = train(nodes, name, job(mode, seed), own, START_S + 3 * course.limit_s)
        except RingleaderError as error:
            failed.append(f"{name}: {error}")
            _say(failed[-1])
        else:
            run = ModeRun(name, mode, [worker.function for worker in ended])
            _say(_progress(run))
            yield run


def job(mode: ModeCase, seed: int) -> JobSpec:
    """The job file of a run."""
    return JobSpec.parse(
        {
            "name": mode.name,
            "entrypoint": "ringleader.bench.training.course:Course",
            "workers": {"min": WORKERS, "max": WORKERS},
            "batch": {"global_size": GLOBAL_BATCH},
            "sync": dict(mode.sync),
            "seed": seed,
        }
    )


def _figures(runs: Sequence[ModeRun], scale: Scale) -> Iterator[Figure]:
    rings = [run for run in runs if run.mode is REFERENCE]
    for run in runs:
        beside = rings[:1] if run.name == AGAIN else [] if run is runs[0] else rings
        yield from _of(run, beside, scale)


def _of(run: ModeRun, rings: Sequence[ModeRun], scale: Scale) -> Iterator[Figure]:
    """The figures of one mode, beside the ring's."""
    peer, samples, limit_s = "our ring" if rings else None, scale.samples, scale.limit_s
    yield Figure(
        run.name,
        "rows/s",
        "higher",
        [run.rows_s],
        [ring.rows_s for ring in rings],
        peer,
        cell=Cell(run.name, "rows/s"),
    )
    after: tuple[tuple[str, str, Callable[[ModeRun], float]], ...] = (
        ("rows", f"{samples:,} rows", lambda each: each.loss_after_rows(samples)),
        ("seconds", f"{limit_s:.0f} s", lambda each: each.loss_after_s(limit_s)),
    )
    for counted, words, loss in after:
        yield Figure(
            f"{run.name}-loss-after-{counted}",
            "nat",
            "lower",
            [loss(run)],
            [loss(ring) for ring in rings],
            peer,
            cell=Cell(run.name, f"loss after {words}"),
        )
    yield Figure(
        f"{run.name}-bytes",
        "B",
        "lower",
        [run.crossed_bytes] if scale.counted else [],
        [ring.crossed_bytes for ring in rings] if scale.counted else [],
        peer if scale.counted else None,
        cell=Cell(run.name, "B between nodes a batch"),
    )
    yield Figure(
        f"{run.name}-waiting", "ratio", "lower", [run.waiting], cell=Cell(run.name, "share of time waiting")
    )


def _settings(what: str, scale: Scale, nodes: Nodes) -> str:
    links = (
        f"two loopback addresses that share no memory; bytes between nodes are not counted: {nodes.unlinked}"
        if nodes.unlinked
        else "network namespaces behind links of 1 Gbit/s, bytes by the kernel's counters"
    )
    return (
        f"{what}, a convolutional network of 1.1M parameters, global batch {GLOBAL_BATCH}, SGD, learning rate "
        f"{LEARNING_RATE}{_rates()}, momentum {MOMENTUM}, both constant and otherwise the same for all, one seed; "
        f"{NODES} nodes of {WORKERS_A_NODE} workers, 1 thread each, all on this machine's cores: {links}; "
        f"the real session and exchange without a supervisor; {scale.limit_s:.0f} s of training a mode, evaluations "
        f"stop the clock; loss of held-out rows, after {scale.samples:,} rows (the most that every mode reached) and "
        f"after {scale.limit_s:.0f} s; waiting: blocked on the exchange or on rows, mean of the workers; "
        f"our ring: mean of its first and last run"
    )


def _rates() -> str:
    """The modes with another learning rate, in words."""
    return "".join(f" ({m.label}: {LEARNING_RATE * m.rate:g})" for m in MODES if m.rate != 1)


def _progress(run: ModeRun) -> str:
    last = run.points[-1]
    return f"{run.name}: {last.samples:,} rows in {last.seconds:.1f} s, loss {last.loss:.3f}"


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _curve(run: ModeRun, limit_s: float) -> Curve:
    """The curve of a run, cut at the second at which all end."""
    before = [(point.seconds, point.loss) for point in run.points if point.seconds < limit_s]
    return Curve(run.mode.label, run.mode.family, (*before, (limit_s, run.loss_after_s(limit_s))))


def _caption(what: str) -> str:
    return f"{what}, {NODES} nodes × {WORKERS_A_NODE} workers, learning rate {LEARNING_RATE}{_rates()}"
