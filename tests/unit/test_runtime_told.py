"""What every member prints beside its session calls is told once, whoever is lost and whoever joins."""

import random
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from integration.ray_home import IngestServer
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.runtime.messages import AttemptLaunch, Heartbeat, PrintedLine, ProcessIdentity, WorkerEvent
from ringleader.runtime.records.printed_once import PrintedOnce
from ringleader.runtime.records.record_log import RecordLog
from ringleader.runtime.worker.output_capture import OutputCapture, captured
from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, run_local

CALLS, LINES = 6, 4
PROGRAM = [(call, number) for call in range(CALLS) for number in range(1, LINES + 1)]


def text(call: int, number: int) -> str:
    return f"before {call}: {number}"


def line(call: int, number: int, level: Any = "info") -> PrintedLine:
    return PrintedLine(0.0, level, text(call, number), call, number)


@pytest.mark.parametrize("seed", range(20))
def test_each_line_is_told_once_and_in_order_whoever_is_lost_in_the_middle(seed: int) -> None:
    """Members print the same at their own pace; one is lost now and then, and who joins prints all of it again."""
    draw, told = random.Random(seed), PrintedOnce(None, begun=True)
    at = {f"w{n}": 0 for n in range(3)}
    said: list[str] = []
    while min(at.values()) < len(PROGRAM):
        worker = draw.choice([w for w, reached in at.items() if reached < len(PROGRAM)])
        said += [one.text for _, one in told.take(worker, line(*PROGRAM[at[worker]]))]
        at[worker] += 1
        if draw.random() < 0.1 and len(at) < 9:
            del at[worker]
            at[f"w{len(said)}-{seed}"] = 0
    assert said == [text(*place) for place in PROGRAM]


def test_errors_are_counted_apart_and_what_a_call_prints_is_each_members_own() -> None:
    told = PrintedOnce(None, begun=True)
    own = PrintedLine(0.0, "info", "in a body")
    brought = [line(1, 1), line(1, 1, "error"), own, line(1, 1, "error"), own]
    assert [len(told.take("w0", one)) for one in brought] == [1, 1, 1, 0, 1]


@pytest.fixture
def server() -> Iterator[IngestServer]:
    server = IngestServer()
    yield server
    server.close()


def record_log(server: IngestServer, home: Path, attempt: int) -> RecordLog:
    spec = JobSpec.parse({"name": "a", "entrypoint": "m:f"})
    return RecordLog(AttemptLaunch("job_a", attempt, spec, None, server.url, "secret", home), lambda: None)


def beat(
    number: int, *lines: PrintedLine, worker: str = "w0", events: tuple[WorkerEvent, ...] = ()
) -> Heartbeat:
    return Heartbeat(worker, ProcessIdentity(1, "n", "h"), number=number, lines=lines, events=events)


def logged(server: IngestServer, one: RecordLog, attempt: int = 1) -> list[str]:
    assert one.uploader.drained(60)
    return [record["line"] for record in server.stream("logs", attempt)]


@pytest.mark.parametrize(
    ("began", "expected"),
    [
        (
            WorkerEvent("checkpoint.restored", 1, {"step": 8, "attempt": 1, "uri": "u", "calls": 2}),
            PROGRAM[3 * LINES :],
        ),
        (WorkerEvent("checkpoint.none", 1, {"step": 0}), PROGRAM),
    ],
)
def test_a_later_attempt_tells_only_what_stands_behind_the_call_that_it_goes_on_with(
    server: IngestServer, tmp_path: Path, began: WorkerEvent, expected: list[tuple[int, int]]
) -> None:
    one = record_log(server, tmp_path, attempt=2)
    early = [line(*place) for place in PROGRAM[:LINES]]
    one.beat(beat(1, *early, worker="w1"))
    assert logged(server, one, 2) == [], "nobody knows yet whether they were told"
    one.beat(beat(1, *early, events=(began,)))
    one.beat(beat(2, *(line(*place) for place in PROGRAM[LINES:])))
    assert logged(server, one, 2) == [text(*place) for place in expected]
    one.discard()


def test_a_supervisor_that_comes_back_knows_what_was_told(server: IngestServer, tmp_path: Path) -> None:
    before = record_log(server, tmp_path, attempt=1)
    before.beat(beat(1, line(0, 1), line(0, 2)))
    assert len(logged(server, before)) == 2
    before.uploader.close()
    after = record_log(server, tmp_path, attempt=1)
    after.beat(beat(1, line(0, 1), line(0, 2), line(0, 3), worker="w1"))
    assert logged(server, after) == [text(0, number) for number in (1, 2, 3)]
    after.discard()


# --- where a line stands ----------------------------------------------------------------------------------------------


def test_lines_know_before_which_call_they_stand_and_bodies_keep_theirs() -> None:
    lines = OutputCapture()
    with captured(lines):
        print("top")
        lines.within()
        lines.at_step(1)
        print("body")
        lines.between(1)
        print("behind")
        print("ringleader: not the program's")
        lines.between(1)
        thread = threading.Thread(target=print, args=["another thread"])
        thread.start()
        thread.join()
        print("still")
        lines.within(told=False)
        print("a rehearsal")
        lines.between(1)
        print("and still")
    lines.release()
    found = [(one.text, one.before, one.number) for one in lines.take()[0]]
    assert found == [
        ("top", 0, 1),
        ("body", None, 0),
        ("behind", 1, 1),
        ("ringleader: not the program's", None, 0),
        ("another thread", None, 0),
        ("still", 1, 2),
        ("and still", 1, 3),
    ]


def test_what_a_joiner_prints_again_waits_behind_those_who_took_part() -> None:
    lines = OutputCapture()
    with captured(lines):
        print("top")
        lines.between(1)
        print("again")
        lines.at_step(7)
        lines.at_step(8)
        lines.within()
        print("body")
        lines.replayed()
        lines.settled(8)
        assert [one.text for one in lines.take()[0]] == ["top"]
        lines.settled(9)
        assert [one.text for one in lines.take()[0]] == ["again"], "a step that starts over prints it no more"


class Places(RecordedOutput):
    """Where the program stands when something is printed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = "0"
        self.printed: list[str] = []

    def between(self, call: int) -> None:
        self.now = str(call)

    def within(self, *, told: bool = True) -> None:
        self.now = "in a call" if told else "rehearsed"

    def write(self, text: str) -> int:
        self.printed += [f"{self.now}: {text}"] if text.strip() else []
        return len(text)


def test_the_session_says_where_the_program_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))

    def train(session: Any) -> None:
        print("top")
        net = session.model(torch.nn.Linear(4, 2))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for epoch in range(3):
            for x, y in session.batches(rows):
                print("body")
                session.step(F.cross_entropy(net(x), y))
                if epoch == 2:
                    break
            print("epoch")
            session.evaluate(rows, lambda batch: {"one": torch.ones(len(batch[0]))})
            print("scored")

    places = Places()
    monkeypatch.setattr("ringleader.train.local.RecordedOutput", lambda: places)
    with redirect_stdout(places):  # type: ignore[type-var]
        run_local({"name": "a", "entrypoint": "a:b", "batch": {"global_size": 4}}, train, tmp_path)
    body = ["in a call: body"] * 2
    assert places.printed == [
        *("0: top", *body, "1: epoch", "2: scored"),
        *(*body, "3: epoch", "4: scored"),
        *(*body[:1], "5: epoch", "6: scored"),
    ]
