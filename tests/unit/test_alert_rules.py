"""Alert rules as pure functions: when each fires, when not again, and what it remembers."""

from datetime import UTC, datetime, timedelta
from typing import Any

from ringleader.spec.alerts import AlertCondition, StateName
from ringleader.wire.states import State
from ringleader_api.alerting.rules import Happened, News, Point, Verdict, judge

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def news(**changes: Any) -> News:
    return News(**{"now": NOON, "state": State.RUNNING, "queued_at": NOON, **changes})


def told(verdict: Verdict) -> list[str]:
    return [fired.message for fired in verdict.fired]


def follow(condition: AlertCondition, looks: list[News]) -> list[list[str]]:
    """What a rule says at each look, with its memory handed on."""
    memory: dict[str, Any] = {}
    said = []
    for look in looks:
        verdict = judge(condition, memory, look)
        memory = verdict.memory
        said.append(told(verdict))
    return said


def values(*given: float, name: str = "loss", first: int = 0) -> News:
    return news(points=[Point(name, first + step, value, NOON) for step, value in enumerate(given)])


def test_the_states_of_a_rule_are_those_of_a_job() -> None:
    assert list(StateName.__args__) == [state.value for state in State]


def test_a_state_fires_each_time_that_it_is_reached() -> None:
    rule = AlertCondition(state="failed")
    reason = {"code": "out_of_memory", "message": "no memory left", "hint": ""}
    failed = Happened("job.failed", NOON, {"reason": reason})
    verdict = judge(rule, {}, news(events=[Happened("job.running", NOON, {}), failed, failed]))
    assert told(verdict) == ["has failed: no memory left"] * 2
    assert verdict.fired[0].data["reason"] == {"code": "out_of_memory", "message": "no memory left"}
    assert told(judge(rule, {}, news(events=[Happened("job.queued", NOON, {"reason": "odd"})]))) == []


def test_a_state_that_a_traceback_explains_is_told_in_one_sentence() -> None:
    raised = (
        "The training function raised in step 33 (epoch 2, slice 0):\nTraceback (most recent call last):\n"
        '  File "toy.py", line 24, in train\nValueError: out of range\n'
    )
    failed = Happened("job.failed", NOON, {"reason": {"code": "entrypoint_raised", "message": raised}})
    verdict = judge(AlertCondition(state="failed"), {}, news(events=[failed]))
    assert told(verdict) == ["has failed: ValueError: out of range (raised in step 33 (epoch 2, slice 0))"]
    assert verdict.fired[0].data["reason"] == {"code": "entrypoint_raised", "message": raised}


def test_workers_lost_at_once_are_one_alert() -> None:
    lost = [Happened("worker.lost", NOON, {"worker": f"w{n}", "cause": "died"}) for n in range(7)]
    rule = AlertCondition(worker_lost=True)
    assert told(judge(rule, {}, news(events=lost))) == ["lost 7 workers: w0, w1, w2, w3, w4 and 2 more"]
    assert told(judge(rule, {}, news(events=lost[:1]))) == ["lost 1 worker: w0"]
    assert told(judge(rule, {}, news(events=[Happened("worker.left", NOON, {})]))) == []


def test_a_metric_fires_once_behind_so_many_steps_in_a_row() -> None:
    rule = AlertCondition(metric="loss", above=10.0, steps=3)
    looks = [values(11, 12), values(13, 14, 15), values(9), values(11, 11), values(11), values(99, 99, 99)]
    fired = ["loss is 13 at step 0, above 10 for 3 recorded steps"]
    assert follow(rule, looks) == [[], fired, [], [], [fired[0].replace("13", "11")], []]


def test_a_metric_at_its_bound_is_not_beyond_it() -> None:
    assert follow(AlertCondition(metric="loss", above=10.0), [values(10), values(10.5)])[0] == []
    assert follow(AlertCondition(metric="acc", below=0.5), [values(0.5, 0.4, name="acc")]) == [
        ["acc is 0.4 at step 1, below 0.5"]
    ]


def test_other_metrics_break_no_row() -> None:
    rule = AlertCondition(metric="loss", above=1.0, steps=2)
    mixed = [Point("loss", 1, 2.0, NOON), Point("acc", 1, 0.0, NOON), Point("loss", 2, 2.0, NOON)]
    assert len(judge(rule, {}, news(points=mixed)).fired) == 1


def test_a_wait_fires_once_for_each_time_in_the_queue() -> None:
    rule = AlertCondition(waits_longer_than_s=60.0)
    early = judge(rule, {}, news(state=State.QUEUED, now=NOON + timedelta(seconds=59)))
    assert (told(early), early.due_at) == ([], NOON + timedelta(seconds=60))
    late = news(state=State.QUEUED, now=NOON + timedelta(seconds=61))
    again = news(
        state=State.QUEUED,
        queued_at=NOON + timedelta(seconds=100),
        now=NOON + timedelta(seconds=200),
    )
    said = [["has waited 61 s in the queue"], [], [], ["has waited 100 s in the queue"]]
    assert follow(rule, [late, late, news(), again]) == said
    assert judge(rule, {}, news(now=NOON + timedelta(days=1))).due_at is None


def spent(wall_s: float, compute_s: float) -> News:
    return news(wall_s=wall_s, compute_s=compute_s)


def test_goodput_is_judged_over_each_stretch_and_told_once_until_one_is_better() -> None:
    rule = AlertCondition(goodput_below=0.5, over_s=100.0)
    looks = [spent(0, 0), spent(50, 1), spent(100, 40), spent(200, 60), spent(300, 160), spent(400, 161)]
    low = ["computed 40% of the last 100 s, less than 50%"]
    assert follow(rule, looks) == [[], [], low, [], [], ["computed 1% of the last 100 s, less than 50%"]]


def test_goodput_wants_a_look_while_the_job_holds_something() -> None:
    rule = AlertCondition(goodput_below=0.5, over_s=100.0)
    memory = {"wall_s": 0.0, "compute_s": 0.0, "low": False}
    assert judge(rule, memory, spent(30, 1)).due_at == NOON + timedelta(seconds=70)
    assert judge(rule, memory, news(state=State.QUEUED)).due_at is None


def test_an_account_that_went_back_begins_a_new_stretch() -> None:
    rule = AlertCondition(goodput_below=0.5, over_s=100.0)
    assert judge(rule, {"wall_s": 500.0, "compute_s": 1.0, "low": True}, spent(30, 1)).memory == {
        "wall_s": 30.0,
        "compute_s": 1.0,
        "low": False,
    }
