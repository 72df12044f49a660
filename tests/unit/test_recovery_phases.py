"""A recovery by phase, from the machine to wherever people read it: the same five, under the same names."""

import re
from datetime import UTC, datetime
from pathlib import Path

from membership_world import World

from ringleader.elastic import events as ev
from ringleader_api.store.tables import Event
from ringleader_api.tracking.records import recovery_points

PHASES = ("detect", "decide", "regroup", "heal", "redo")
PAGE = Path(__file__).parents[2] / "api" / "web" / "src" / "history.ts"


def recovered(cause: str) -> dict[str, float]:
    """Of a member that was last heard of at 9 s, and whose loss is certain at 10.2 s."""
    world = World.of(workers_min=1, workers_max=3, shards=6)
    world.calm()
    world.commit()
    world.now = 10.0
    world.tell(ev.Evict("w1", cause, world.now, since=9.0))
    world.now = 10.2
    world.hear()
    world.now = 10.3
    for worker in ("w0", "w2"):
        world.sense(worker)
    for member in world.current():
        world.tell(ev.Seated(member, world.plan.generation, 10.4))
        world.tell(ev.Healed(member, world.plan.generation, 10.6))
    world.now = 11.0
    world.commit()
    (data,) = [report.data for report in world.reports if report.type == "recovered"]
    return {name: round(value, 6) for name, value in data.items()}


def test_the_time_until_a_frozen_worker_was_found_is_part_of_its_recovery() -> None:
    spans = {"detect_s": 1.2, "decide_s": 0.1, "regroup_s": 0.1, "heal_s": 0.2, "redo_s": 0.4}
    assert recovered("frozen") == {**spans, "total_s": 2.0, "steps_lost": 0}


def test_mlflow_gets_every_phase() -> None:
    at = datetime(2026, 11, 20, tzinfo=UTC)
    data = recovered("frozen")
    events = [
        Event(seq=1, type="worker.lost", at=at, data={"step": 7}),
        Event(seq=2, type="recovered", at=at, data=data),
    ]
    found = {point.key: (point.step, point.value) for point in recovery_points(events, after=0)}
    assert found == {f"recovery_{name}": (7, value) for name, value in data.items()}
    assert {f"recovery_{phase}_s" for phase in PHASES} <= found.keys()


def test_the_page_shows_every_phase() -> None:
    (listed,) = re.findall(r"export const PHASES = \[(.*?)\]", PAGE.read_text(encoding="utf-8"))
    assert tuple(re.findall(r'"(\w+)"', listed)) == PHASES
    assert {f"{phase}_s" for phase in PHASES} == recovered("frozen").keys() - {"total_s", "steps_lost"}
