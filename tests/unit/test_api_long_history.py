"""A long history of ended jobs costs those who look for the few others nothing: no statement reads them all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control_plane import SPEC, Stage, outcome, stage
from sqlalchemy import event, text
from test_api_tracking import Keeping

from ringleader_api.tracking import Exporter

KEY = {"Idempotency-Key": "k1"}
AuditedAction = Callable[[Stage, Exporter], Any]
DEEDS: dict[str, AuditedAction] = {
    "a round of the reconciler": lambda here, exporter: here.tick(),
    "a round of the exporter": lambda here, exporter: exporter.round(),
    "metrics": lambda here, exporter: here.client.get("/metrics"),
    "readiness": lambda here, exporter: here.client.get("/readyz"),
    "a submission": lambda here, exporter: [
        here.client.post("/api/v1/jobs", json=SPEC, headers=KEY) for _ in "12"
    ],
    "a dry run": lambda here, exporter: here.client.post("/api/v1/jobs?dry_run=true", json=SPEC),
    "a page": lambda here, exporter: here.client.get("/api/v1/jobs"),
    "a page by state": lambda here, exporter: here.client.get("/api/v1/jobs?state=failed"),
    "a page by project": lambda here, exporter: here.client.get("/api/v1/jobs?project=default"),
    "a page by name": lambda here, exporter: here.client.get("/api/v1/jobs?name=digits"),
}


@pytest.mark.parametrize("name", DEEDS)
def test_no_statement_reads_all_jobs(tmp_path: Path, name: str) -> None:
    here = stage(tmp_path, jobs_kept_days=30)
    exporter = Exporter(here.control.store, Keeping(broken=""), now=here.time)
    ended = here.running()
    here.post(ended, records=[outcome(1, "failed", "no_step")])
    here.tick(2)
    exporter.round()
    here.time.pass_s(3600)
    asked: list[tuple[str, Any]] = []

    @event.listens_for(here.control.store.engine(), "before_cursor_execute")
    def _asked(_c: Any, _k: Any, statement: str, parameters: Any, _x: Any, many: bool) -> None:
        if " jobs" in statement and not many and not statement.startswith("INSERT"):
            asked.append((statement, parameters))

    DEEDS[name](here, exporter)
    said = list(asked)
    with here.control.store.read() as session:
        connection = session.connection()
        for statement, parameters in said:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            scans = {row[-1] for row in plan if row[-1].startswith("SCAN jobs")}
            stops = "LIMIT" in statement and not any("B-TREE" in row[-1] for row in plan)
            counts = "count(" in statement and all("COVERING INDEX" in scan for scan in scans)
            assert not scans or ((stops or counts) and "SCAN jobs" not in scans), (statement, plan)
    assert said, "it has to ask for jobs at all"
    here.control.close()


def test_a_plan_that_reads_all_jobs_is_seen(tmp_path: Path) -> None:
    here = stage(tmp_path)
    with here.control.store.read() as session:
        plan = session.execute(text("EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE epoch = 9")).all()
    assert [row[-1] for row in plan] == ["SCAN jobs"]
    here.control.close()
