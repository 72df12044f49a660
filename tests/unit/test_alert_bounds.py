"""How often a rule tells of one job."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from ringleader.spec.alerts import AlertCondition
from ringleader.wire.states import State
from ringleader_api.alerting.bounds import judge_within_bounds
from ringleader_api.alerting.rules import Fired, Happened, News, Point

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HIGH = AlertCondition(metric="loss", above=0.0)


def look(after_s: float, *values: float, **changes: Any) -> News:
    now = NOON + timedelta(seconds=after_s)
    points = [Point("loss", step, value, now) for step, value in enumerate(values)]
    return News(**{"now": now, "state": State.RUNNING, "queued_at": NOON, "points": points, **changes})


def follow(*looks: News) -> tuple[list[list[str]], list[datetime | None]]:
    """What the rule says at each look, and when it wants the next, with its memory handed on as JSON."""
    memory: dict[str, Any] = {}
    said, due = [], []
    for news in looks:
        verdict = judge_within_bounds(HIGH, memory, news)
        memory = json.loads(json.dumps(verdict.memory))
        said.append([fired.message for fired in verdict.fired])
        due.append(verdict.due_at)
    return said, due


def test_a_value_that_swings_about_its_bound_is_one_alert_of_a_look() -> None:
    said, _ = follow(look(0, *[1, -1] * 2500))
    assert said == [["loss is 1 at step 4998, above 0 (and 2499 times before, since the last alert)"]]


def test_a_rule_fires_once_a_minute_and_what_came_meanwhile_is_told_then() -> None:
    said, due = follow(
        look(0, 1, -1), look(1, 2, -1, 3, -1), look(59, 4, -1), look(60), look(90), look(121, 5)
    )
    assert said == [
        ["loss is 1 at step 0, above 0"],
        [],
        [],
        ["loss is 4 at step 0, above 0 (and 2 times before, since the last alert)"],
        [],
        ["loss is 5 at step 0, above 0"],
    ]
    minute = NOON + timedelta(minutes=1)
    assert due == [None, minute, minute, None, None, None]


def test_what_is_held_back_is_told_when_the_job_ends() -> None:
    said, _ = follow(look(0, 1, -1), look(1, 2), look(2, state=State.SUCCEEDED))
    assert said == [["loss is 1 at step 0, above 0"], [], ["loss is 2 at step 0, above 0"]]


def test_states_are_told_each_time_up_to_twenty_at_once() -> None:
    def told(times: int) -> list[Fired]:
        events = [Happened("job.failed", NOON, {})] * times
        return judge_within_bounds(AlertCondition(state="failed"), {}, look(0, events=events)).fired

    assert [one.message for one in told(20)] == ["has failed"] * 20
    assert [one.message for one in told(500)] == ["has failed"] * 19 + ["has failed (and 480 more)"]


def test_the_data_of_lost_workers_is_bounded() -> None:
    lost = [Happened("worker.lost", NOON, {"worker": "w" * 999, "cause": "c" * 9999})] * 99
    (fired,) = judge_within_bounds(AlertCondition(worker_lost=True), {}, look(0, events=lost)).fired
    assert fired.data == {"workers": ["w" * 200] * 20, "causes": ["c" * 200] * 20}
    assert fired.message.startswith("lost 99 workers: ")
