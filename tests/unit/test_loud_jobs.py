"""A job that prints far more than anybody reads: all that it costs is bounded and counted, and nobody else waits."""

from pathlib import Path
from typing import Any

import pytest
from control_plane import AT, FakeCluster, Stage, event, stage
from sqlalchemy import func, select

from ringleader.runtime.records.spool import BATCH_BYTES, BATCH_RECORDS, Spool
from ringleader.runtime.worker.output_capture import OutputCapture
from ringleader_api.store.tables import LogRow

ROUNDS, PRINTED, LENGTH = 6, 1000, 500
SPOOL_BYTES, KEPT = 1 << 17, 150


class Loud:
    """A worker's lines, its supervisor's spool, and posts to the real application: a post a round."""

    def __init__(self, here: Stage, folder: Path) -> None:
        self._here = here
        self.job_id = here.running(workers={"min": 1, "max": 1})
        self._lines = OutputCapture()
        self._spool = Spool(folder, max_bytes=SPOOL_BYTES)
        self.printed = self.dropped_by_worker = 0
        self.posts: list[int] = []

    def print_and_post(self) -> None:
        for _ in range(PRINTED):
            self._lines.add("info", f"{self.printed} ".ljust(LENGTH, "x"))
            self.printed += 1
        lines, dropped = self._lines.take()
        self.dropped_by_worker += dropped
        for line in lines:
            self._spool.put("logs", {"at": AT, "worker": "w0", "level": line.level, "line": line.text})
        self._spool.flush()
        self.post()

    def post(self) -> bool:
        batch = self._spool.batch(max_records=BATCH_RECORDS, max_bytes=BATCH_BYTES)
        self.posts.append(sum(len(r["line"]) for r in batch))
        if batch:
            self._spool.ack(self._here.post(self.job_id, records=batch)["acked"])
        return bool(batch)

    @property
    def dropped(self) -> int:
        return self.dropped_by_worker + self._spool.dropped.get("logs", 0)

    @property
    def waiting(self) -> int:
        """Bytes; what they take on the disk follows from that (test_spool)."""
        return self._spool._size()


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path / "home", FakeCluster(cpus=8), logs_kept=KEPT)


def logs(here: Stage, job_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = here.client.get(f"/api/v1/jobs/{job_id}/logs?limit=1000").json()
    return answer


def test_a_flood_is_bounded_everywhere_and_every_line_is_kept_or_counted(here: Stage, tmp_path: Path) -> None:
    loud = Loud(here, tmp_path / "spool")
    quiet = here.running(workers={"min": 1, "max": 1})
    for n in range(1, ROUNDS + 1):
        loud.print_and_post()
        here.post(quiet, records=[event(n, "worker.joined", number=n)])
        told = here.client.get(f"/api/v1/jobs/{quiet}/events?limit=1000").json()["items"]
        assert [e["data"]["number"] for e in told if e["type"] == "worker.joined"] == [*range(1, n + 1)], (
            "one post after it happened, whatever the other one prints"
        )
        assert loud.waiting <= SPOOL_BYTES
        assert len(logs(here, loud.job_id)["items"]) <= KEPT
    while loud.post():
        pass
    assert max(loud.posts) <= BATCH_BYTES, "what the API has in its hands at a time"
    with here.control.store.read() as session:
        assert session.scalar(select(func.count()).select_from(LogRow)) == KEPT
    found = logs(here, loud.job_id)
    assert loud.printed == ROUNDS * PRINTED
    assert loud.dropped > loud.printed // 2
    assert KEPT + found["dropped"] + loud.dropped == loud.printed
    assert found["items"][-1]["line"].split()[0] == str(loud.printed - 1), "the newest stay"
