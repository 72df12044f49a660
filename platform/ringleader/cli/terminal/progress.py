"""The progress of one job in words, and drawn as a bar with a line of figures below."""

import math
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ringleader.cli.output import duration, number
from ringleader.cli.terminal.pace import left_s, rate
from ringleader.cli.terminal.screen import Screen
from ringleader.wire.states import State
from ringleader.wire.views import JobView

STYLES = {State.RUNNING: "green", State.SUCCEEDED: "green", State.FAILED: "red", State.CANCELLED: "dim"}
"""Of states; the others wait for something, and are yellow."""
LEAST_BAR, WIDEST_BAR = 8, 60


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job at one look. None: not known."""

    view: JobView
    steps_per_s: float | None = None
    rows_per_s: float | None = None
    loss: float | None = None

    @property
    def left_s(self) -> float | None:
        return left_s(self.view, self.steps_per_s)


def drawn(seen: JobSnapshot, screen: Screen) -> RenderableType:
    """Two lines that fit the screen."""
    view, width = seen.view, screen.width
    state = screen.text(view.state, STYLES.get(view.state, "yellow"))
    why = view.pending_reason
    below = screen.text(" ".join(why.message.split()) if why else _fitting(figures(seen), width), "dim")
    below.truncate(width, overflow="ellipsis" if screen.unicode else "crop")
    if not (total := view.progress.total_steps):
        return Group(Text.assemble(state, f" step {view.progress.step}" if view.progress.step else ""), below)
    counts = _counts(seen, width - len(state) - LEAST_BAR - 2)
    bar_width = min(WIDEST_BAR, width - len(state) - len(counts) - 2)
    row = Table.grid(padding=(0, 1, 0, 0))
    bar = ProgressBar(total, view.progress.step, width=max(1, bar_width))
    row.add_row(*(state, bar, counts) if bar_width >= LEAST_BAR else (state, counts))
    return Group(row, below)


def sentence(seen: JobSnapshot) -> str:
    """The same as one plain line."""
    view = seen.view
    if view.pending_reason:
        return f"{view.state}: {view.pending_reason.message}"
    step = ", ".join(_shown(seen)[:1] + ([f"about {left}"] if (left := _left(seen)) else []))
    return ", ".join([view.state, f"step {step}", *figures(seen)])


def figures(seen: JobSnapshot) -> list[str]:
    """The facts that are known besides the step, the most important first."""
    view = seen.view
    bounds = view.spec.get("workers", {})
    fewest, most = bounds.get("min", 1), bounds.get("max", 1)
    wanted = f"{fewest}-{most}" if fewest != most else f"{most}"
    pace = ""
    if seen.rows_per_s is not None:
        pace = f"{rate(seen.rows_per_s)} rows/s"
    elif seen.steps_per_s is not None:
        pace = f"{rate(seen.steps_per_s)} steps/s"
    return [
        *([f"loss {number(seen.loss)}"] if seen.loss is not None else []),
        *([pace] if pace else []),
        *([f"{view.world_size} of {wanted} workers"] if not view.state.ended else []),
        *([f"epoch {view.progress.epoch}"] if view.progress.epoch else []),
        *([f"attempt {view.attempt}"] if view.attempt > 1 else []),
    ]


def _counts(seen: JobSnapshot, width: int) -> str:
    """Steps, their share and the time left, as much of it as fits."""
    step, share = _shown(seen)
    left = _left(seen)
    wordy = "  ".join(part for part in (step, share, f"about {left}" if left else "") if part)
    short = "  ".join(part for part in (step, left) if part)
    return next((text for text in (wordy, short) if len(text) <= width), step)


def _shown(seen: JobSnapshot) -> list[str]:
    """The step of how many, and its share of them."""
    step, total = seen.view.progress.step, seen.view.progress.total_steps
    return [f"{step}/{total}", f"{100 * min(step, total) // total}%"] if total else [f"{step}", ""]


def _left(seen: JobSnapshot) -> str:
    return f"{duration(math.ceil(seen.left_s))} left" if seen.left_s else ""


def _fitting(parts: list[str], width: int) -> str:
    """As many of the parts, from the first on, as fit."""
    while len(parts) > 1 and len("  ".join(parts)) > width:
        parts = parts[:-1]
    return "  ".join(parts)
