"""What the outlet's spool keeps, drops and forgets."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringleader.runtime.records.spool import MAX_BYTES, Spool, unposted

LOG_BYTES = 5 << 20
"""What SQLite's own log holds at most before it is written back."""


def read(spool: Spool, *, max_records: int = 10_000) -> list[tuple[str, int]]:
    return [(r["stream"], r["seq"]) for r in spool.batch(max_records=max_records, max_bytes=1 << 30)]


def test_records_are_numbered_per_stream_and_read_in_order(tmp_path: Path):
    spool = Spool(tmp_path)
    spool.put("events", {"type": "a"})
    spool.put("metrics", {"step": 1})
    spool.put("events", {"type": "b"})
    assert read(spool) == []
    spool.flush()
    assert read(spool) == [("events", 1), ("metrics", 1), ("events", 2)]


def test_what_is_acknowledged_is_forgotten_and_nothing_else(tmp_path: Path):
    spool = Spool(tmp_path)
    for step in range(4):
        spool.put("metrics", {"step": step})
        spool.put("logs", {"line": "x"})
    spool.flush()
    spool.ack({"metrics": 3, "logs": 1})
    assert read(spool) == [("logs", 2), ("logs", 3), ("metrics", 4), ("logs", 4)]


def test_the_outcome_leaves_last(tmp_path: Path):
    spool = Spool(tmp_path)
    spool.put("outcome", {"outcome": "succeeded"})
    spool.put("logs", {"line": "x"})
    spool.flush()
    assert read(spool) == [("logs", 1), ("outcome", 1)]


def test_a_batch_is_bounded_by_bytes_but_never_empty(tmp_path: Path):
    spool = Spool(tmp_path)
    for _ in range(3):
        spool.put("logs", {"line": "x" * 1000})
    spool.flush()
    assert len(spool.batch(max_records=10, max_bytes=10)) == 1
    assert len(spool.batch(max_records=10, max_bytes=2500)) == 2
    assert len(spool.batch(max_records=1, max_bytes=10_000)) == 1


def test_a_full_spool_thins_metrics_then_logs_and_never_events(tmp_path: Path):
    spool = Spool(tmp_path, max_bytes=60_000)
    for step in range(2000):
        spool.put("metrics", {"step": step, "values": {"loss": 1.0}})
        spool.put("events", {"type": "generation.formed"}) if step % 100 == 0 else None
    for _ in range(300):
        spool.put("logs", {"line": "y" * 200})
    spool.put("outcome", {"outcome": "succeeded"})
    spool.flush()
    kept = read(spool)
    assert sum(stream == "events" for stream, _ in kept) == 20
    assert kept[-1] == ("outcome", 1)
    metrics = [seq for stream, seq in kept if stream == "metrics"]
    assert metrics[0] == 1, "the first point is kept"
    assert metrics[-1] == 2000, "the newest point is kept"
    assert spool.dropped["metrics"] == 2000 - len(metrics)
    assert spool.dropped["logs"] == 300 - sum(stream == "logs" for stream, _ in kept)
    assert kept[-2] == ("logs", 300), "the newest lines are kept"


@pytest.mark.parametrize(
    ("printed", "bound"),
    [(24 << 20, 1 << 20), pytest.param(1 << 30, MAX_BYTES, marks=pytest.mark.chaos)],
    ids=["scaled down", "1 GB"],
)
def test_a_job_that_prints_without_end_fills_no_disk_and_loses_no_event(
    tmp_path: Path, printed: int, bound: int
):
    spool = Spool(tmp_path, max_bytes=bound)
    text = "x" * 16_000
    largest = 0
    for number in range(printed // len(text) // 16):
        for _ in range(16):
            spool.put("logs", {"line": text})
        spool.put("events", {"type": "generation.formed", "number": number})
        spool.flush()
        largest = max(largest, sum(file.stat().st_size for file in tmp_path.iterdir()))
    assert largest < 4 * bound + LOG_BYTES, "the database and its log, whatever was printed"
    spool.put("outcome", {"outcome": "succeeded"})
    spool.flush()
    told: dict[str, int] = {}
    while batch := spool.batch(max_records=1000, max_bytes=8 << 20):
        for record in batch:
            told[record["stream"]] = told.get(record["stream"], 0) + 1
        spool.ack({r["stream"]: r["seq"] for r in batch})
    assert (told["events"], told["outcome"]) == (number + 1, 1)
    assert told["logs"] + spool.dropped["logs"] == 16 * (number + 1)


def test_a_process_that_follows_a_killed_one_goes_on_with_its_numbers_and_notes(tmp_path: Path):
    spool = Spool(tmp_path)
    spool.put("events", {"type": "a"})
    spool.put("events", {"type": "b"})
    spool.note("generation", b"7")
    spool.flush()
    spool.ack({"events": 2})
    spool.put("events", {"type": "lost with the process"})
    spool.note("generation", b"8")
    after = Spool(tmp_path)
    assert after.notes == {"generation": b"7"}
    assert after.put("events", {"type": "c"}) == 3
    after.flush()
    assert read(after) == [("events", 3)]


def test_what_a_full_disk_did_not_take_is_written_once_when_there_is_room_again(tmp_path: Path):
    spool = Spool(tmp_path)
    spool._db.execute("PRAGMA max_page_count = 8")
    spool.put("events", {"type": "x" * 100_000})
    spool.note("generation", b"7")
    with pytest.raises(OSError, match="cannot write to"):
        spool.flush()
    assert read(spool) == []
    spool._db.execute("PRAGMA max_page_count = 1000")
    spool.put("events", {"type": "b"})
    spool.flush()
    assert (read(spool), Spool(tmp_path).notes) == ([("events", 1), ("events", 2)], {"generation": b"7"})


def test_what_belongs_together_comes_to_disk_together(tmp_path: Path):
    spool = Spool(tmp_path)
    with ThreadPoolExecutor(1) as pool, spool.together():
        spool.put("events", {"type": "worker.lost"})
        flushed = pool.submit(spool.flush)  # as the poster does at any moment
        spool.note("membership", b"without it")
        assert not flushed.done()
        assert read(Spool(tmp_path)) == []
    after = Spool(tmp_path)
    assert (read(after), after.notes) == ([("events", 1)], {"membership": b"without it"})


def test_an_outcome_that_was_refused_is_on_disk_until_the_one_in_its_place_is(tmp_path: Path):
    spool = Spool(tmp_path)
    spool.put("outcome", {"outcome": "failed", "reason": None})
    spool.flush()
    (refused,) = spool.batch(max_records=1, max_bytes=1)
    spool.give_up(refused, {"at": "now", "line": "refused"})
    assert (read(spool), spool.empty) == ([], False)
    assert read(Spool(tmp_path)) == [("outcome", 1)], "what a process that died here leaves"
    spool.flush()
    assert read(spool) == read(Spool(tmp_path)) == [("logs", 1), ("outcome", 2)]


def test_a_line_that_was_refused_is_forgotten_and_hides_none_behind_it(tmp_path: Path):
    spool = Spool(tmp_path)
    for _ in range(2):
        spool.put("logs", {"line": "x"})
    spool.flush()
    spool.give_up(spool.batch(max_records=1, max_bytes=1)[0], {"at": "now", "line": "refused"})
    assert read(spool, max_records=1) == [("logs", 2)]
    spool.flush()
    assert (read(spool), spool.dropped) == ([("logs", 2)], {"logs": 1})


def test_what_the_supervisor_of_a_lost_attempt_has_not_posted_is_read_to_its_end_and_goes(tmp_path: Path):
    folder = tmp_path / "spool"
    assert list(unposted(folder)) == []
    assert not folder.exists()
    spool = Spool(folder)
    for step in range(1500):
        spool.put("metrics", {"step": step})
    spool.put("outcome", {"outcome": "succeeded"})
    spool.put("events", {"type": "a"})
    spool.flush()
    spool.ack({"metrics": 2})
    left = unposted(folder)
    first = next(left)
    left.close()  # whoever took them in died
    batches = list(unposted(folder))
    assert batches[0] == first
    told = [(record["stream"], record["seq"]) for batch in batches for record in batch]
    assert told == [*(("metrics", seq) for seq in range(3, 1501)), ("events", 1), ("outcome", 1)]
    assert not folder.exists()
