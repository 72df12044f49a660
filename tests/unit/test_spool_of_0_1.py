"""The spool of an attempt that version 0.1 ran is read and emptied by this one."""

import shutil
from pathlib import Path

from ringleader.runtime.records.spool import Spool

WRITTEN = Path(__file__).parent / "spool_of_0_1"


def test_records_that_0_1_left_are_posted_in_order(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN, tmp_path / "spool")
    spool = Spool(tmp_path / "spool")
    records = spool.batch(max_records=10, max_bytes=1 << 20)
    assert [(record["stream"], record["seq"]) for record in records] == [
        ("events", 1),
        ("metrics", 1),
        ("logs", 1),
        ("outcome", 1),
    ]
    assert records[0]["data"] == {"worker": "w1"}
    assert spool.notes == {"metrics": b"7"}
    spool.ack({"events": 1, "metrics": 1, "logs": 1, "outcome": 1})
    assert spool.empty
    assert spool.put("events", {"kind": "worker.started", "at": 2.5}) == 2
    spool.close()
