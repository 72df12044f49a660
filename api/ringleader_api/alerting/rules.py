"""Whether an alert rule fires: pure functions of what is new about a job and of what the rule remembers of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ringleader.spec.alerts import AlertCondition, Kind
from ringleader.text import gist
from ringleader.wire.states import State

Memory = Mapping[str, Any]
"""What a rule remembers of one job between two looks, as JSON."""
LEAST_WAIT = timedelta(seconds=1)
_ENDED = {"succeeded": "has succeeded", "failed": "has failed", "cancelled": "was cancelled"}
NAMED = 5
"""The most lost workers that a message names."""
LISTED, MAX_TEXT = 20, 200
"""The most lost workers that an alert's data lists, and the most characters of each name and cause."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the job."""

    type: str
    at: datetime
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """A recorded value of a metric."""

    name: str
    step: int
    value: float
    at: datetime


@dataclass(frozen=True, slots=True)
class News:
    """The news about a job: the events and points since the last look, and how it stands now.

    Attributes:
        now: the time of this look.
        wall_s, compute_s: the running time so far, and the part of it that was spent computing.
    """

    now: datetime
    state: State
    queued_at: datetime
    events: Sequence[Happened] = ()
    points: Sequence[Point] = ()
    wall_s: float = 0.0
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fired:
    """A rule whose condition came true."""

    at: datetime
    message: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a look: how often a rule fired, what it remembers from now on, and when it wants a look whatever
    happens."""

    fired: list[Fired] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    due_at: datetime | None = None


def judge(condition: AlertCondition, memory: Memory, news: News) -> Verdict:
    """Judge one rule of one job."""
    return _JUDGES[condition.kind](condition, memory, news)


def _state(condition: AlertCondition, _: Memory, news: News) -> Verdict:
    reached = [event for event in news.events if event.type == f"job.{condition.state}"]
    fired = []
    told = _ENDED.get(condition.state or "", f"is {condition.state}")
    for event in reached:
        why = event.data.get("reason")
        reason = (
            {key: str(why.get(key, "")) for key in ("code", "message")} if isinstance(why, dict) else None
        )
        because = f": {gist(reason['message'])}" if reason else ""
        fired.append(Fired(event.at, f"{told}{because}", {"state": condition.state, "reason": reason}))
    return Verdict(fired)


def _worker_lost(_: AlertCondition, __: Memory, news: News) -> Verdict:
    lost = [event for event in news.events if event.type == "worker.lost"]
    if not lost:
        return Verdict()
    # One alert for all that are lost at once: a node takes many with it.
    workers = [str(event.data.get("worker", "?"))[:MAX_TEXT] for event in lost]
    more = f" and {len(workers) - NAMED} more" if len(workers) > NAMED else ""
    told = f"lost {len(workers)} worker{'s' if len(workers) > 1 else ''}: {', '.join(workers[:NAMED])}{more}"
    causes = [str(event.data.get("cause", ""))[:MAX_TEXT] for event in lost]
    return Verdict([Fired(lost[0].at, told, {"workers": workers[:LISTED], "causes": causes[:LISTED]})])


def _metric(condition: AlertCondition, memory: Memory, news: News) -> Verdict:
    """Fires once when the last of `steps` values in a row is beyond the bound, and again only after one was not."""
    beyond = int(memory.get("beyond", 0))
    fired = []
    for point in news.points:
        if point.name != condition.metric:
            continue
        beyond = beyond + 1 if _is_beyond(condition, point.value) else 0
        if beyond == condition.steps:
            side, bound = (
                ("above", condition.above) if condition.above is not None else ("below", condition.below)
            )
            for_steps = f" for {beyond} recorded steps" if beyond > 1 else ""
            told = f"{point.name} is {point.value:g} at step {point.step}, {side} {bound:g}{for_steps}"
            data = {"metric": point.name, "step": point.step, "value": point.value, side: bound}
            fired.append(Fired(point.at, told, data))
    # No further than one past `steps`: it needs no more than to differ.
    return Verdict(fired, {"beyond": min(beyond, condition.steps + 1)} if beyond else {})


def _is_beyond(condition: AlertCondition, value: float) -> bool:
    if condition.above is not None:
        return value > condition.above
    return condition.below is not None and value < condition.below


def _waits(condition: AlertCondition, memory: Memory, news: News) -> Verdict:
    """Fires once for each time that the job is queued."""
    assert condition.waits_longer_than_s is not None
    if news.state is not State.QUEUED:
        return Verdict()
    since = news.queued_at.isoformat()
    if memory.get("since") == since:
        return Verdict(memory=dict(memory))
    due_at = news.queued_at + timedelta(seconds=condition.waits_longer_than_s)
    if news.now < due_at:
        return Verdict(due_at=due_at)
    waited_s = (news.now - news.queued_at).total_seconds()
    data = {"waited_s": round(waited_s, 1), "queued_at": since}
    return Verdict([Fired(news.now, f"has waited {waited_s:.0f} s in the queue", data)], {"since": since})


def _goodput(condition: AlertCondition, memory: Memory, news: News) -> Verdict:
    """Fires when a stretch of running time ends in which too little was computed, once until one is better."""
    assert condition.goodput_below is not None
    # Of an earlier version, or a job whose account was corrected: begin anew.
    began = memory if 0 <= memory.get("wall_s", -1.0) <= news.wall_s else {}
    wall_s, compute_s = began.get("wall_s", news.wall_s), began.get("compute_s", news.compute_s)
    low, passed_s = bool(began.get("low", False)), news.wall_s - wall_s
    fired = []
    if passed_s >= condition.over_s:
        share = max(0.0, news.compute_s - compute_s) / passed_s
        if share < condition.goodput_below and not low:
            told = (
                f"computed {share:.0%} of the last {passed_s:.0f} s, less than {condition.goodput_below:.0%}"
            )
            fired.append(Fired(news.now, told, {"goodput": round(share, 4), "over_s": round(passed_s, 1)}))
        low, wall_s, compute_s, passed_s = share < condition.goodput_below, news.wall_s, news.compute_s, 0.0
    ahead = max(LEAST_WAIT, timedelta(seconds=condition.over_s - passed_s))
    return Verdict(
        fired,
        {"wall_s": wall_s, "compute_s": compute_s, "low": low},
        news.now + ahead if news.state.holds else None,
    )


_JUDGES: Mapping[Kind, Callable[[AlertCondition, Memory, News], Verdict]] = {
    "state": _state,
    "worker_lost": _worker_lost,
    "metric": _metric,
    "waits_longer_than_s": _waits,
    "goodput_below": _goodput,
}
