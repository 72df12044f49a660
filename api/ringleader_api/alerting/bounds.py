"""Bounds on how often a rule tells of one job: what comes more often is counted, and told with the next alert."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ringleader.spec.alerts import AlertCondition
from ringleader_api.alerting.rules import Fired, Memory, News, Verdict, judge

EVERY = timedelta(minutes=1)
"""The least time between two alerts of one rule for one job."""
MOST_AT_ONCE = 20
"""The most alerts of a rule for states that one look raises."""
_TOLD_AT, _HELD = "told_at", "held"


def judge_within_bounds(condition: AlertCondition, memory: Memory, news: News) -> Verdict:
    """Judge one rule of one job, which fires at most once a minute; for states and lost workers each time, but for so
    many at once."""
    verdict = judge(condition, memory, news)
    if condition.kind in ("state", "worker_lost"):
        return replace(verdict, fired=_first(verdict.fired))
    own = {key: value for key, value in verdict.memory.items() if key not in (_TOLD_AT, _HELD)}
    held = memory.get(_HELD)
    fired = [*([_read(held)] if held else []), *verdict.fired]
    before = len(fired) - 1 + (held["before"] if held else 0)
    free_at = datetime.fromisoformat(memory[_TOLD_AT]) + EVERY if _TOLD_AT in memory else news.now
    # A job that has ended may not be looked at again.
    if news.now >= free_at or news.state.ended:
        if not fired:
            return replace(verdict, memory=own)
        own[_TOLD_AT] = news.now.isoformat()
        return Verdict([_with_count(fired[-1], before)], own, verdict.due_at)
    own[_TOLD_AT] = memory[_TOLD_AT]
    if not fired:
        return replace(verdict, memory=own)
    own[_HELD] = _written(fired[-1], before)
    return Verdict([], own, min(free_at, verdict.due_at or free_at))


def _first(fired: Sequence[Fired]) -> list[Fired]:
    more = len(fired) - MOST_AT_ONCE
    if more <= 0:
        return list(fired)
    *first, last = fired[:MOST_AT_ONCE]
    return [*first, replace(last, message=f"{last.message} (and {more} more)")]


def _with_count(fired: Fired, before: int) -> Fired:
    if not before:
        return fired
    times = "once" if before == 1 else f"{before} times"
    return replace(fired, message=f"{fired.message} (and {times} before, since the last alert)")


def _written(fired: Fired, before: int) -> dict[str, Any]:
    return {
        "at": fired.at.isoformat(),
        "message": fired.message,
        "data": fired.data,
        "before": before,
    }


def _read(held: Memory) -> Fired:
    return Fired(datetime.fromisoformat(held["at"]), held["message"], held["data"])
