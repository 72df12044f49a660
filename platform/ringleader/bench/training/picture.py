"""Loss over seconds as one SVG file: a line a mode, named where it ends, for light and dark pages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from pathlib import Path

from ringleader.bench.training.modes import Family

WIDTH, HEIGHT = 1000, 650
LEFT, RIGHT, TOP, BOTTOM = 64, 700, 112, 586
LABEL, LABEL_GAP = RIGHT + 44, 19
DASHES = ("", "7 3", "2 3", "10 3 2 3", "14 4", "4 2 1 2", "1 5", "10 2 2 2 2 2")
TINTS: dict[Family, tuple[str, str]] = {
    "ring": ("#22221f", "#f3f2ee"),
    "codec": ("#2a78d6", "#5b9eee"),
    "servers": ("#d9541e", "#ee7d4c"),
    "hybrid": ("#6a54c9", "#9f8ff0"),
    "tokens": ("#c2337a", "#ea6fa6"),
    "rounds": ("#15885f", "#2bb584"),
}
"""Family → its colour on a light and on a dark page; within a family lines differ by their dashes."""

STYLE = """
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink); font-size: 13px }
.page { fill: var(--page) } .title { font-size: 18px; font-weight: 600 } .quiet { fill: var(--quiet) }
.grid { stroke: var(--grid) } .leader { stroke: var(--grid); fill: none }
.line { fill: none; stroke-width: 1.75; stroke-linejoin: round } .first { stroke-width: 3 }
.number { font-variant-numeric: tabular-nums; text-anchor: end }
"""
INKS = {
    "page": ("#fcfcfb", "#1a1a19"),
    "ink": ("#22221f", "#f3f2ee"),
    "quiet": ("#6b6a63", "#a3a199"),
    "grid": ("#e4e3dd", "#383835"),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One mode's line: (seconds, loss), by seconds."""

    label: str
    family: Family
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high` on pixels from `start` to `stop`; `step` between two ticks."""

    low: float
    high: float
    start: float
    stop: float
    step: float

    @classmethod
    def over(cls, low: float, high: float, start: float, stop: float, ticks: int) -> "Axis":
        """About so many ticks at round values; `low` is rounded down to one."""
        # The least width: all values may be equal.
        rough = max(high - low, 1e-9) / ticks
        size = 10.0 ** floor(log10(rough))
        step = next(s * size for s in (1, 2, 5, 10) if s * size >= rough)
        return cls(floor(low / step) * step, high, start, stop, step)

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        # 1e-9 of a step: rounding must not lose a tick that lies on the border.
        first, last = ceil(self.low / self.step - 1e-9), floor(self.high / self.step + 1e-9)
        return [n * self.step for n in range(first, last + 1)]


def draw(path: Path, curves: Sequence[Curve], caption: str) -> None:
    """Write the picture. The first curve is the one that the others are compared with; it is drawn heavier."""
    path.write_text(svg(curves, caption), encoding="utf-8")


def svg(curves: Sequence[Curve], caption: str) -> str:
    """The picture as text."""
    seconds = [x for curve in curves for x, _ in curve.points]
    losses = [y for curve in curves for _, y in curve.points]
    across = Axis.over(0, max(seconds), LEFT, RIGHT, 6)
    up = Axis.over(min(losses), max(losses), BOTTOM, TOP, 7)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Held-out loss over seconds of training</title>",
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT - 40}" y="36">Held-out loss over seconds of training</text>',
        f'<text class="quiet" x="{LEFT - 40}" y="58">{escape(caption)}</text>',
        *_axes(across, up),
        *_lines(curves, across, up),
        *_labels(curves, up),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _style() -> str:
    names: dict[str, tuple[str, str]] = {**INKS, **TINTS}  # type: ignore[dict-item]
    light, dark = (" ".join(f"--{name}: {tints[n]};" for name, tints in names.items()) for n in (0, 1))
    families = " ".join(f".{family} {{ stroke: var(--{family}) }}" for family in TINTS)
    root = f"svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    return f"{root}\n{families}{STYLE}"


def _axes(across: Axis, up: Axis) -> Iterator[str]:
    decimals = f".{max(0, -floor(log10(up.step)))}f"
    for loss in up.ticks():
        y = up.at(loss)
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="quiet number" x="{LEFT - 10}" y="{y + 4:.1f}">{loss:{decimals}}</text>'
    for second in across.ticks():
        x = across.at(second)
        yield f'<text class="quiet" x="{x:.1f}" y="{BOTTOM + 22}" text-anchor="middle">{second:g}</text>'
    middle = (LEFT + RIGHT) / 2
    yield f'<text class="quiet" x="{middle}" y="{BOTTOM + 44}" text-anchor="middle">seconds of training</text>'
    yield f'<text class="quiet" x="{LEFT - 40}" y="{TOP - 18}">loss, nats</text>'


def _lines(curves: Sequence[Curve], across: Axis, up: Axis) -> Iterator[str]:
    """A line for each curve, the first one last, so that it lies on top."""
    for number in [*range(1, len(curves)), 0]:
        curve = curves[number]
        points = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in curve.points)
        yield f'<polyline {_look(curves, number)} points="{points}"><title>{escape(curve.label)}</title></polyline>'


def _labels(curves: Sequence[Curve], up: Axis) -> Iterator[str]:
    """Labels from the worst loss, at the top, to the best, as near to the ends of their lines as there is room."""
    ends = [curve.points[-1][1] for curve in curves]
    order = sorted(range(len(curves)), key=lambda n: -ends[n])
    last = max(curve.points[-1][0] for curve in curves)
    yield f'<text class="number quiet" x="{WIDTH - 16}" y="{TOP - 18}">loss at {last:.0f} s</text>'
    places = spread([up.at(ends[n]) for n in order], LABEL_GAP, TOP, BOTTOM + 44)
    for number, y in zip(order, places, strict=True):
        end, weight = up.at(ends[number]), ' font-weight="600"' if number == 0 else ""
        path = f"M {RIGHT + 3} {end:.1f} L {LABEL - 8} {y:.1f}"
        yield f'<path class="leader" d="{path}"/>'
        yield f'<line {_look(curves, number)} x1="{LABEL}" x2="{LABEL + 30}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LABEL + 38}" y="{y + 4.5:.1f}"{weight}>{escape(curves[number].label)}</text>'
        yield f'<text class="number quiet" x="{WIDTH - 16}" y="{y + 4.5:.1f}">{ends[number]:.3f}</text>'


def _look(curves: Sequence[Curve], number: int) -> str:
    family = curves[number].family
    dash = DASHES[sum(curve.family == family for curve in curves[:number]) % len(DASHES)]
    classes = f"line {family} first" if number == 0 else f"line {family}"
    return f'class="{classes}" stroke-dasharray="{dash}"' if dash else f'class="{classes}"'


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places in ascending order near the wanted ones (ascending), `gap` apart, between `low` and `high` if they fit."""
    places = list(wanted)
    for n in range(len(places)):
        places[n] = max(places[n], places[n - 1] + gap if n else low)
    # Back from the end: labels that ran out of room push those before them up.
    for n in reversed(range(len(places))):
        places[n] = min(places[n], places[n + 1] - gap if n + 1 < len(places) else high)
    return places
