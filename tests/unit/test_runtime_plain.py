"""What the owner's process reads of what a job's has written: one type each, and nothing is made of the rest."""

import os
import pickle
from dataclasses import replace

import pytest

from ringleader.checkpoint.manifest import CheckpointFile, CheckpointPosition, SavedPart
from ringleader.comm.timeline import TimelineSpan, TimelineStretch
from ringleader.elastic import ParkReport
from ringleader.runtime.messages import (
    Attendance,
    Heartbeat,
    ParkMessage,
    PrintedLine,
    ProcessIdentity,
    RunEnded,
    SettledMetrics,
    SettledRows,
    WorkerEvent,
)
from ringleader.runtime.worker.plain_values import NotPlain, frame, read
from ringleader.wire.views import Spent

WHO = ProcessIdentity(1, "node", "127.0.0.1", 7)
PARK_MESSAGE = ParkMessage("w0", WHO, ParkReport(1, 2, 3, "why", 4, "net.weight"))
BEAT = Heartbeat(
    "w0",
    WHO,
    generation=2,
    step=9,
    total_steps=None,
    phase="forward",
    worked_s=0.5,
    spent=Spent(wall_s=1.5),
    number=3,
    park_message=PARK_MESSAGE,
    healed_ago_s=0.25,
    metrics=(SettledMetrics(1, 2, {"loss": float("inf"), "rate": 0.1}),),
    rows=(SettledRows(1, b"\x00\xff", b"\x80"),),
    events=(WorkerEvent("program.differs", 1, {"a": [1, {"b": None}], "c": "ü"}),),
    stretches=(
        TimelineStretch(
            1, 2, 3, 0, 0.1, 0.2, 9.0, (TimelineSpan("training", "step", 0.1, 0.2, {"rows": 4}),), 5
        ),
    ),
    saved=(SavedPart(CheckpointPosition(1, 2, 3, 4), 0, 1, (CheckpointFile("w0", 3, "aa"),), 0.1, 0.2),),
    lines=(PrintedLine(1.0, "info", "héllo", 3, 1),),
    lines_dropped=2,
)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("ready", ()),
        ("parked", (PARK_MESSAGE,)),
        ("seated", (3,)),
        ("in_sync", (4,)),
        ("beat", (1, BEAT)),
        ("secrets", (2,)),
        ("index", (5, "ab12")),
        ("index_made", ("ab12", b"\x00\xff")),
        ("index_made", ("ab12", None)),
        ("attendance", (3, Attendance(WHO, True, 4, PARK_MESSAGE))),
        ("ended", (RunEnded("finished", result={"digest": "aa", "scores": {"x": 0.5}, "staleness": [1]}),)),
    ],
)
def test_all_that_a_member_says_arrives_as_it_was_said(kind: str, values: tuple[object, ...]):
    assert read(frame(kind, *values)) == (kind, values)


def test_half_a_character_arrives_as_a_question_mark():
    cut = replace(BEAT, lines=(PrintedLine(1.0, "info", "\udc80"),))
    _, (_, told) = read(frame("beat", 1, cut))
    assert told.lines[0].text == "?"


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/harmed",)


@pytest.mark.parametrize(
    "told",
    [
        pickle.dumps(Harmful()),
        b"beat\n" + pickle.dumps(Harmful()),
        b"",
        b"beat",
        b"beat\n[1]",
        b'beat\n[1, {"worker": "w0"}]',
        b'seated\n["three"]',
        b"seated\n[1, 2]",
        b"run\n[]",
        b"parked\n" + b"[" * 100_000,
        b'ended\n[{"kind": "succeeded"}]',
        frame("beat", 1, BEAT).replace(b'"00ff"', b'"no hex"'),
        frame("beat", 1, BEAT).replace(b'"step": 9', b'"step": {"$": "os.system"}'),
    ],
)
def test_what_no_member_says_is_refused(told: bytes):
    with pytest.raises(NotPlain):
        read(told)


def test_nothing_of_a_type_of_ours_is_made_of_what_is_free():
    """Facts of an event are numbers, texts, lists and objects by name, whatever they are called."""
    sent = {"__class__": "os.system", "py/object": "builtins.eval", "deep": {"more": [1, True, None]}}
    _, (_, told) = read(frame("beat", 1, replace(BEAT, events=(WorkerEvent("free", 1, sent),))))
    assert told.events[0].data == sent
    assert type(told.events[0].data) is dict
