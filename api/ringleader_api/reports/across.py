"""The x axis of a report's charts: steps, the time of day, or seconds since the job started. Pure."""

from datetime import UTC, datetime
from math import ceil

from ringleader.wire.views import ComparedCurve
from ringleader_api.reports.chart import by_step, ticks
from ringleader_api.reports.document import seconds, when
from ringleader_api.services.records.metrics import Axis, Interval

DAY_S = 86_400
TARGET = 6
_ROUND_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, DAY_S)
_WORDS = {
    Axis.STEP: "By step",
    Axis.WALL: "By the time of day (UTC)",
    Axis.RELATIVE: "By the time since each job started",
}


def points_of(
    curve: ComparedCurve, axis: Axis, started_at: datetime | None
) -> list[tuple[float, float | None]]:
    """The curve's points by the axis, in its order; none where the job never started and its start counts."""
    if axis is Axis.STEP:
        return list(zip(curve.steps, curve.values, strict=True))
    since_s = 0.0 if axis is Axis.WALL else None if started_at is None else started_at.timestamp()
    if since_s is None:
        return []
    # Steps that ran again after a loss have later times than those behind them.
    return sorted(
        ((at - since_s, value) for at, value in zip(curve.times, curve.values, strict=True)),
        key=lambda point: point[0],
    )


def place_of(step: int, at: datetime, axis: Axis, started_at: datetime | None) -> float | None:
    """Where something that happened then is on the axis; None: it has no place there."""
    if axis is Axis.STEP:
        return step
    if axis is Axis.WALL:
        return at.timestamp()
    return None if started_at is None else (at - started_at).total_seconds()


def marks(low: float, high: float, axis: Axis) -> list[tuple[float, str]]:
    """Round places from low to high, with their words."""
    if axis is Axis.STEP:
        return by_step(low, high)
    rough = (high - low) / TARGET
    every = next((one for one in _ROUND_S if rough <= one), DAY_S * ceil(rough / DAY_S))
    if rough < 1:
        places = ticks(low, high, TARGET)
    else:
        places = [float(turn * every) for turn in range(ceil(low / every), int(high // every) + 1)]
    return [(at, _time(at, every) if axis is Axis.WALL else _since(at)) for at in places]


def described(interval: Interval) -> list[str]:
    """A sentence about the axis and the stretch; none where they are all steps."""
    if interval == Interval():
        return []
    ends = [("from", interval.first), ("to", interval.last)]
    stretch = "".join(f" {word} {_end(end, interval.axis)}" for word, end in ends if end is not None)
    return [
        f"{_WORDS[interval.axis]}{stretch}. Last values are those of whole curves."
        if stretch
        else f"{_WORDS[interval.axis]}."
    ]


def _since(at: float) -> str:
    """A time as people read it; whole minutes without seconds, whole hours without minutes."""
    if at < 60 or at % 60:
        return seconds(at)
    hours, minutes = divmod(round(at / 60), 60)
    return " ".join(f"{n} {unit}" for n, unit in ((hours, "h"), (minutes, "min")) if n)


def _time(at: float, every_s: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return (
        f"{moment:%Y-%m-%d}"
        if every_s >= DAY_S
        else f"{moment:%m-%d %H:%M:%S}"
        if every_s < 60
        else f"{moment:%m-%d %H:%M}"
    )


def _end(end: float, axis: Axis) -> str:
    if axis is Axis.RELATIVE:
        return seconds(end)
    if axis is Axis.STEP:
        return f"{end:,.10g}"
    try:
        return when(datetime.fromtimestamp(end, UTC))
    except (OverflowError, OSError, ValueError):  # beyond all dates
        return f"{end:.10g} s"
