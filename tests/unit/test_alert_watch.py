"""The watch over jobs: what one look reads, and whose turn it is."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from control_plane import Stage, stage
from sqlalchemy import delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ringleader_api.alerting import cursors, watch
from ringleader_api.store.alerts import AlertCursor
from ringleader_api.store.tables import Job

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
POSTGRES = postgresql.dialect()  # type: ignore[no-untyped-call]


def test_the_look_for_news_uses_the_index_of_open_cursors() -> None:
    """A database takes a partial index only for the condition that it was made with, word by word."""
    query = watch._with_news(NOON, "")
    assert "open IS 1" in str(query.compile(dialect=sqlite.dialect()))
    assert "open IS true" in str(query.compile(dialect=POSTGRES))


def events_read(here: Stage) -> dict[str, int]:
    """By job, the last event that was read."""
    with here.control.store.read() as session:
        return {cursor.job_id: cursor.events for cursor in session.scalars(select(AlertCursor))}


def test_jobs_that_always_have_news_keep_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AT_ONCE", 1)
    monkeypatch.setattr(watch, "LOOKS", 1)
    here = stage(tmp_path)
    when = {"worker_lost": True}
    here.client.put("/api/v1/secrets/default/SLACK", json={"value": "https://hooks.example.org/x"})
    rules = [{"name": "lost", "when": when, "channels": [{"slack": "SLACK"}]}]
    jobs = [here.submit(alerts=rules) for _ in range(3)]
    looked: list[str] = []
    for _ in range(8):
        with here.control.store.write() as session:
            session.execute(update(Job).values(event_seq=Job.event_seq + 1))
        before = events_read(here)
        here.control.alerting.tick()
        after = events_read(here)
        looked += [job for job in jobs if after[job] > before[job]]
    here.control.close()
    # A round that finds nobody behind the last one goes on at the first in the next.
    assert looked == [*sorted(jobs), *sorted(jobs)]


def test_cursors_are_locked_in_the_order_of_their_jobs() -> None:
    locked = str(watch._locked(["b", "a"]).compile(dialect=POSTGRES))
    assert locked.rstrip().endswith("ORDER BY alert_cursors.job_id FOR UPDATE")
    assert str(cursors._living("default").compile(dialect=POSTGRES)).endswith("ORDER BY jobs.id")


def test_a_job_that_was_being_stored_while_a_rule_was_set_is_followed(tmp_path: Path) -> None:
    here = stage(tmp_path)
    stored, older, ended = (here.submit() for _ in range(3))
    here.client.post(f"/api/v1/jobs/{ended}/cancel")
    here.client.put("/api/v1/secrets/default/SLACK", json={"value": "https://hooks.example.org/x"})
    here.time.pass_s(9)
    rule = {"when": {"worker_lost": True}, "channels": [{"slack": "SLACK"}]}
    assert here.client.put("/api/v1/projects/default/alerts/lost", json=rule).status_code == 200
    with here.control.store.write() as session:
        session.execute(delete(AlertCursor))
        created_at = here.time.now - timedelta(seconds=11)
        session.execute(update(Job).where(Job.id == older).values(created_at=created_at))
        cursors.follow_overlooked(session, here.time.now)
    assert list(events_read(here)) == [stored]
    here.control.close()
