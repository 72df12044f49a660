"""Reading a Chrome trace back: whose steps it holds, and whether its spans lie inside each other."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def read(path: Path) -> list[Event]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return list(document["traceEvents"])


def complete(events: list[Event]) -> list[Event]:
    return [event for event in events if event["ph"] == "X"]


def workers(events: list[Event]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def is_step(event: Event) -> bool:
    return event["ph"] == "X" and event["name"].startswith("step ")


def steps_of(events: list[Event]) -> dict[str, list[int]]:
    """Worker → the steps it has, in order, as often as they are there."""
    names, found = workers(events), defaultdict(list)
    for event in filter(is_step, events):
        found[names[event["pid"]]] += range(event["args"]["first"], event["args"]["last"] + 1)
    return dict(found)


def interval(event: Event) -> tuple[int, int]:
    """Whole nanoseconds."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def inside(events: list[Event], outer: Event) -> list[Event]:
    start, stop = interval(outer)
    return [
        e
        for e in complete(events)
        if e is not outer and e["pid"] == outer["pid"] and start <= interval(e)[0] and interval(e)[1] <= stop
    ]


def check_nested(events: list[Event]) -> None:
    """On each thread two spans lie side by side or one inside the other."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in complete(events):
        threads[event["pid"], event["tid"]].append(interval(event))
    for spans in threads.values():
        open_until: list[int] = []
        for start, stop in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or stop <= open_until[-1], (start, stop, open_until)
            open_until.append(stop)
