"""The trace of leased modes: every item with its parts, waits that add up to what the result says, no gap."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from leasing import ASYNC, BACKUP, SSP, job, learn, name_of
from play import Play
from threaded_cast import Shot, ThreadedCast
from trace_file import check_nested, complete, inside, is_step, read, steps_of, workers

from ringleader.comm.chrome import TraceFile
from ringleader.comm.timeline import TRAINING, Unsettled
from ringleader.train.local import run_local
from ringleader.train.modes.async_server.messages import PUSH

STEPS, ITEMS = 15, 3 * 20
"""Three epochs of 72 rows in batches of 16: the last batch has two rows in each of four shards."""

PARTS = {"exposed": "exposed_s", "idle": "idle_s", "recovery": "recovery_s"}


def traced(mode: dict[str, Any], **changes: Any) -> Any:
    return job(mode, debug={"trace": True, "ledger": True}, **changes)


def events_of(play: Play, folder: Path) -> list[dict[str, Any]]:
    file = TraceFile(folder / "trace")
    waiting: dict[str, Unsettled] = defaultdict(Unsettled)
    for worker, stretch in play.stretches:
        waiting[worker].add(stretch)
    for worker, stretches in waiting.items():
        for stretch in stretches.settled(STEPS + 2):
            file.add(worker, stretch)
    return read(file.finish(folder))


@pytest.mark.parametrize("mode", [ASYNC | {"servers": 2}, SSP, BACKUP], ids=name_of)
def test_each_member_s_windows_hold_its_items_and_its_waits_are_those_of_the_result(
    mode: dict[str, Any], tmp_path: Path
) -> None:
    """One worker is killed inside a push."""
    servers = mode.get("servers", 1)
    victim = f"w{servers}"
    shot = Shot(victim, 0, PUSH, 9)
    play = ThreadedCast(traced(mode), learn, artifacts=tmp_path, shots=(shot,)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]
    events = events_of(play, tmp_path)
    check_nested(events)
    names = workers(events)
    for worker, finished in play.finished.items():
        own = [e for e in complete(events) if names[e["pid"]] == worker and e["cat"] == TRAINING]
        stretches = [stretch for name, stretch in play.stretches if name == worker]
        assert all(one.stop_s == other.start_s for one, other in pairwise(stretches))
        for name, seconds in PARTS.items():
            spans = [s for stretch in stretches for s in stretch.spans if s.name == name]
            assert sum(s.stop_s - s.start_s for s in spans) == pytest.approx(
                getattr(finished, seconds), rel=1e-6, abs=1e-9
            )  # the same differences, added in another order
        regroups = [e for e in own if e["name"] == "regroup"]
        heals = [e for e in own if e["name"] == "heal"]
        assert len(regroups) == len(heals) == len([p for p in play.plans if worker in p.members])
    for server in range(servers):
        assert steps_of(events)[f"s{server}"] == list(range(1, STEPS + 1))
    updates = [e for e in complete(events) if names[e["pid"]] == "s0" and e["name"] == "update"]
    assert sum(e["args"]["items"] for e in updates) == ITEMS
    served = [e for e in events if is_step(e) and names[e["pid"]] == "s0" and e["args"]["first"] > 1]
    assert any(e["name"] == "idle" for step in served for e in inside(events, step))
    items = [e for e in complete(events) if e["name"] == "item" and "broken" not in e["args"]]
    assert items
    assert {names[item["pid"]] for item in items} <= set(names.values()) - {f"s{k}" for k in range(servers)}
    for item in items:
        found = [e["name"] for e in inside(events, item) if e["cat"] == TRAINING]
        assert (found.count("forward"), found.count("backward"), found.count("idle")) == (1, 1, 1)
        assert found.count("exposed") in (1, 2)  # the pull; the push before, if there was one


def test_alone_every_item_has_an_update_beside_it(tmp_path: Path) -> None:
    finished, sink = run_local(traced(ASYNC), learn, tmp_path)
    events = read(tmp_path / "trace.json")
    check_nested(events)
    assert steps_of(events) == {"w0": list(range(1, STEPS + 1))}
    names = [event["name"] for event in complete(events)]
    assert names.count("item") == names.count("update") == names.count("backward") == ITEMS
    assert len([e for e in events if is_step(e)]) == finished.steps == len(sink.values)
