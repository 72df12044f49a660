"""The Chrome trace of a run: every step once, spans inside each other, settled ones only, bounded, off by default."""

import json
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from trace_file import check_nested, complete, inside, is_step, read, steps_of

import ringleader
from ringleader.comm.chrome import FILE, TraceFile
from ringleader.comm.timeline import BUCKETS, NO_TIMELINE, TRAINING, Timeline, TimelineStretch, Unsettled
from ringleader.comm.transports.inprocess import Hub
from ringleader.elastic import NOWHERE, ParkReport, Plan
from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, SingleMember, run_local
from ringleader.train.ports import Seat
from ringleader.train.run import run

SPEC: dict[str, Any] = {
    "name": "traced",
    "entrypoint": "unit:train",
    "workers": {"max": 2},
    "batch": {"global_size": 16},
    "debug": {"trace": True},
}
STEPS = 8


def rows() -> TensorDataset:
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def train(session: ringleader.Session) -> None:
    net = session.model(nn.Linear(5, 2))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    for _ in range(2):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
        session.evaluate(rows(), lambda batch: {"hit": (net(batch[0]).argmax(1) == batch[1]).float()})


@pytest.mark.parametrize(
    "sync", ["ring", {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 4}]
)
def test_every_step_is_there_once_with_its_slices_and_its_update(tmp_path: Path, sync: Any):
    finished, _ = run_local(SPEC | {"sync": sync}, train, tmp_path)
    events = read(tmp_path / FILE)
    assert finished.steps == STEPS
    assert steps_of(events) == {"w0": list(range(1, STEPS + 1))}
    names = [event["name"] for event in complete(events)]
    assert names.count("forward") == STEPS * 2  # two logical shards, both this worker's
    assert (
        names.count("update") == names.count("exchange") == len([n for n in names if n.startswith("step ")])
    )
    assert names.count("evaluate") == 2
    assert names.count("after the last step") == 1
    check_nested(events)


class Pair:
    """Two members as threads: plans are made when both are parked, as the supervisor makes them."""

    def __init__(self) -> None:
        self.hub = Hub(2)
        self._parked: dict[int, ParkReport] = {}
        self._met = threading.Barrier(2, action=self._plan, timeout=30)

    def seat(self, rank: int, parked: ParkReport) -> Seat:
        self._parked[rank] = parked
        self._met.wait()
        return Seat(self.plan, rank, self.hub.transport(rank))

    def _plan(self) -> None:
        self.hub = Hub(2)
        first, second = (self._parked[rank].applied for rank in range(2))
        heals = () if first == second else ((("w0", "w1"),) if first < second else (("w1", "w0"),))
        self.plan = Plan(
            attempt=1,
            generation=self._parked[0].generation + 1,
            members=("w0", "w1"),
            servers=0,
            shards=2,
            start_transaction=max(first, second),
            heals=heals,
            recorded_step=0,
            meeting=NOWHERE,
            cause="start",
        )


@dataclass
class Place(SingleMember):
    """One member's coordinator."""

    pair: Pair
    rank: int

    def next_seat(self, parked: ParkReport) -> Seat:
        return self.pair.seat(self.rank, parked)


def test_exposed_spans_are_what_is_logged_and_a_break_lies_in_the_step_that_was_redone(tmp_path: Path):
    pair = Pair()
    sinks = (RecordedOutput(), RecordedOutput())

    def member(rank: int) -> None:
        def breaking(session: ringleader.Session) -> None:
            if rank == 1:
                session.on_commit(lambda: pair.hub.lose(1) if session.global_step == 5 else None)
            train(session)

        run(
            spec=JobSpec.parse(SPEC),
            function=breaking,
            coordinator=Place(pair, rank),
            sink=sinks[rank],
            server=False,
            artifacts=tmp_path / str(rank),
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(member, range(2)))
    assert {part.dropped for sink in sinks for part in sink.stretches} == {0}, "a trial is one span"
    file = TraceFile(tmp_path)
    for rank, sink in enumerate(sinks):
        for part in sink.stretches:
            file.add(f"w{rank}", part)
    events = read(file.finish(tmp_path))
    check_nested(events)
    assert steps_of(events)["w0"] == list(range(1, STEPS + 1))
    assert {e["pid"] for e in events if e["name"] == "trial"} == {1, 2}
    for step in (e for e in events if is_step(e) and e["pid"] == 1):
        waits = [e["dur"] for e in inside(events, step) if e["name"] == "exposed"]
        # Both ends of each span are rounded to a nanosecond.
        rounding = 1e-3 * (len(waits) + 1) / step["dur"]
        logged = sinks[0].values[step["args"]["first"]]["comm_exposed_fraction"]
        assert sum(waits) / step["dur"] == pytest.approx(logged, rel=1e-6, abs=rounding)
    (redone,) = [
        step
        for step in events
        if is_step(step) and step["pid"] == 1 and any("broken" in e["args"] for e in inside(events, step))
    ]
    assert redone["args"]["first"] in {5, 6}  # the sum of the fifth had gone to rank 0 as well, or not
    found = {e["name"] for e in inside(events, redone)}
    assert {"recovery", "regroup", "heal", "forward", "backward", "exchange", "update"} <= found


def test_a_local_session_leaves_its_trace_where_it_is_told(tmp_path: Path):
    with ringleader.local_session(SPEC, tmp_path) as session:
        train(session)
    assert steps_of(read(tmp_path / FILE)) == {"w0": list(range(1, STEPS + 1))}


def test_without_the_key_nothing_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a span of a job that asks for no trace")

    for name in ("__post_init__", "add", "begin", "end", "cut", "unwind"):
        monkeypatch.setattr(Timeline, name, refuse, raising=False)
    finished, sink = run_local(SPEC | {"debug": {}}, train, tmp_path)
    assert (finished.steps, sink.stretches) == (STEPS, [])
    assert not (tmp_path / FILE).exists()


def stretch(first: int, last: int, count: int = 0, track: str = TRAINING) -> TimelineStretch:
    timeline = Timeline(capacity=3)
    for k in range(count):
        timeline.add(track, f"span {k}", first + k / 100, first + (k + 1) / 100)
    return timeline.cut(first=first, last=last, generation=1, rank=0, since=first, until=last + 1)


def test_what_is_begun_ends_inside_of_what_was_begun_before():
    ticks = iter(range(100))
    timeline = Timeline(now=lambda: float(next(ticks)), epoch_s=0.0)
    timeline.begin("exchange")
    timeline.begin("word")
    timeline.end()
    timeline.unwind("lost")
    timeline.end()  # a break has ended it
    cut = timeline.cut(first=1, last=1, generation=1, rank=0, since=0.0, until=9.0)
    assert [(s.name, s.start_s, s.stop_s, s.facts) for s in cut.spans] == [
        ("word", 1.0, 2.0, {}),
        ("exchange", 0.0, 3.0, {"broken": "lost"}),
    ]


def test_a_job_that_asks_for_no_timeline_records_nothing():
    NO_TIMELINE.begin("exchange", phase="word")
    NO_TIMELINE.add(TRAINING, "idle", 0.0, 1.0)
    assert (NO_TIMELINE.on, NO_TIMELINE.inside) == (False, False)
    NO_TIMELINE.unwind("lost")
    assert NO_TIMELINE.cut(first=1, last=1, generation=1, rank=0, since=0.0, until=9.0).spans == ()


def test_spans_beyond_the_capacity_are_counted():
    cut = stretch(1, 1, count=5)
    assert (len(cut.spans), cut.dropped) == (3, 2)


def test_only_settled_steps_leave_and_a_step_that_is_committed_again_leaves_once():
    waiting = Unsettled()
    waiting.add(stretch(1, 1))
    waiting.add(stretch(2, 2))
    assert [s.last for s in waiting.settled(2)] == [1]
    again = stretch(2, 2, count=1)
    waiting.add(again)
    assert waiting.settled(2) == []
    assert waiting.settled(3) == [again]
    assert waiting.settled(9) == []


def test_of_a_long_run_the_newest_steps_are_kept(tmp_path: Path):
    file = TraceFile(tmp_path / "spool", segment_bytes=4000)
    for step in range(1, 101):
        file.add("w0", stretch(step, step, count=3, track=BUCKETS))
    path = file.finish(tmp_path / "artifacts")
    assert file.finish(tmp_path / "elsewhere") == path
    kept = steps_of(read(path))["w0"]
    assert kept == list(range(kept[0], 101))
    assert json.loads(path.read_text())["otherData"]["lost_transactions"] == kept[0] - 1 > 0
    assert path.stat().st_size < 2 * 4000 + 2000  # two segments, names and head
    file.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_trace_goes_on_where_a_killed_process_left_it(tmp_path: Path):
    before = TraceFile(tmp_path / "spool")
    before.add("w0", stretch(1, 1, count=3, track=BUCKETS))
    before.flush()
    with (tmp_path / "spool" / "trace.raw").open("a") as raw:
        raw.write('{"name": "step 2", "ph"')  # it was killed in the middle of a line
    after = TraceFile(tmp_path / "spool")
    after.add("w2", stretch(1, 1))
    after.add("w0", stretch(2, 2, count=3, track=BUCKETS))
    assert steps_of(read(after.finish(tmp_path))) == {"w0": [1, 2], "w2": [1]}


def test_workers_are_processes_and_their_tracks_threads(tmp_path: Path):
    file = TraceFile(tmp_path)
    for worker in ("w0", "w2"):
        file.add(worker, stretch(1, 1))
    names = defaultdict(list)
    for event in read(file.finish(tmp_path)):
        if event["ph"] == "M":
            names[event["name"]].append((event["pid"], event["args"]["name"]))
    assert names["process_name"] == [(1, "w0"), (2, "w2")]
    assert [name for _, name in names["thread_name"]] == ["training", "buckets", "words"] * 2
