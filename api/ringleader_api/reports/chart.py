"""A line chart as numbers of an SVG picture: where each line runs, the marks of both axes. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

WIDTH, HEIGHT = 720, 230
LEFT, RIGHT, TOP, FOOT = 58, 14, 10, 24
COLOURS, DASHES = 6, 4
"""All colours solid, then all dashed, and so on; the page's style names them."""
_GREATEST = 1e300
"""Beyond it differences are no numbers."""

Scale = Callable[[float], str]
"""From a value to its place in the picture."""
Marks = Callable[[float, float], "Sequence[tuple[float, str]]"]
"""From the ends of an axis to its round values, with their words."""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with its name in the legend; x rises."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Trace:
    """A line as it is drawn: the corners of its path, and which colour and dashes it has."""

    label: str
    corners: str
    colour: int
    dash: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis: its place in the picture, its words."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of WIDTH by HEIGHT. `lost` are the places across at which something was lost."""

    title: str
    traces: Sequence[Trace]
    across: Sequence[Tick]
    up: Sequence[Tick]
    lost: Sequence[str]


def by_step(low: float, high: float) -> list[tuple[float, str]]:
    """Round steps."""
    return [(step, f"{step:,.10g}") for step in ticks(low, high, 6)]


def chart(
    title: str, lines: Sequence[Line], lost: Sequence[float] = (), marks: Marks = by_step
) -> Chart | None:
    """The picture of these lines; None where they have no point. `lost`: places on the x axis."""
    places = [x for line in lines for x, _ in line.points]
    values = [_bounded(value) for line in lines for _, value in line.points]
    if not places:
        return None
    first, last = _apart(min(places), max(places))
    low, high = _apart(min(values), max(values))
    air = 0.04 * (high - low)
    low, high = low - air, high + air

    def across(x: float) -> str:
        return f"{LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT):.1f}"

    def up(value: float) -> str:
        return f"{TOP + (high - _bounded(value)) / (high - low) * (HEIGHT - TOP - FOOT):.1f}"

    return Chart(
        title,
        [_trace(place, line, across, up) for place, line in enumerate(lines) if line.points],
        [Tick(across(x), text) for x, text in marks(first, last)],
        [Tick(up(value), number(value)) for value in ticks(low, high, 5)],
        [across(x) for x in lost if first <= x <= last],
    )


def ticks(low: float, high: float, target: int) -> list[float]:
    """Round values from low to high, about `target` of them, at 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / target
    if not rough > 0 or not isfinite(rough):
        return [low]
    power = 10.0 ** floor(log10(rough))
    step = next((one for one in (power, 2 * power, 2.5 * power, 5 * power) if rough <= one), 10 * power)
    if not step > 0 or not isfinite(low / step):
        return [low]
    # An end that falls on a mark may lie beside it by a rounding.
    first, end = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    # Rounded: 3 * 0.1 is no 0.3.
    return [float(f"{turn * step:.12g}") for turn in range(first, end + 1)]


def number(value: float | None) -> str:
    """A value in four digits; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"


def _trace(place: int, line: Line, across: Scale, up: Scale) -> Trace:
    corners = [f"{across(x)},{up(value)}" for x, value in line.points]
    # A single point: a line to itself is drawn as a dot.
    path = " ".join(corners * 2 if len(corners) == 1 else corners)
    return Trace(line.label, path, place % COLOURS, place // COLOURS % DASHES)


def _apart(low: float, high: float) -> tuple[float, float]:
    """The range, with an extent where it has none."""
    if low < high:
        return low, high
    half = max(0.5, abs(low) * 0.05)
    return low - half, high + half


def _bounded(value: float) -> float:
    return max(-_GREATEST, min(_GREATEST, value))
