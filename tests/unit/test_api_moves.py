"""States: only legal edges, each with its event in the same transaction; and the tables are what migrations make."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from control_plane import migrate
from sqlalchemy import select

from ringleader.wire.states import EDGES, State
from ringleader.wire.views import Why
from ringleader_api.store import IllegalMove, Store, move
from ringleader_api.store.tables import Base, Event, Job

AT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    migrate(tmp_path)
    return Store.at(tmp_path)


def put(store: Store, state: State) -> None:
    with store.write() as session:
        session.add(
            Job(
                id="j", name="n", project="p", owner="o", labels={}, spec={}, submitted={}, state=state, workers=[],
                created_at=AT, queued_at=AT, attempt=1, generation=2, event_seq=0, version=1, ran_s=0.0,
            )
        )  # fmt: skip


def goto(store: Store, to: State) -> None:
    target = State.FAILED if to is State.STOPPING else None
    with store.write() as session:
        job = session.get(Job, "j")
        assert job is not None
        move(session, job, to, at=AT, who="test", why=Why(code="c", message="m"), target=target)


def seen(store: Store) -> tuple[State, list[tuple[int, str]]]:
    with store.read() as session:
        job = session.get(Job, "j")
        assert job is not None
        return job.state, [(e.seq, e.type) for e in session.scalars(select(Event).order_by(Event.seq))]


PAIRS = [(a, b) for a in State for b in State]


@pytest.mark.parametrize(("before", "to"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_a_job_moves_over_legal_edges_only_and_each_move_writes_its_event(
    store: Store, before: State, to: State
) -> None:
    put(store, before)
    if to in EDGES[before]:
        goto(store, to)
        assert seen(store) == (to, [(1, f"job.{to}")])
    else:
        with pytest.raises(IllegalMove, match=f"cannot go from {before} to {to}"):
            goto(store, to)
        assert seen(store) == (before, [])


def test_a_move_and_its_event_are_one_transaction(store: Store) -> None:
    put(store, State.QUEUED)

    def die_before_commit() -> None:
        with store.write() as session:
            job = session.get(Job, "j")
            assert job is not None
            move(session, job, State.STARTING, at=AT, who="test")
            session.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        die_before_commit()
    assert seen(store) == (State.QUEUED, [])
    goto(store, State.STARTING)
    assert seen(store) == (State.STARTING, [(1, "job.starting")])


def test_stopping_needs_the_end_it_leads_to(store: Store) -> None:
    put(store, State.RUNNING)
    with store.write() as session:
        job = session.get(Job, "j")
        assert job is not None
        for target in (None, State.RUNNING):
            with pytest.raises(ValueError, match="target"):
                move(session, job, State.STOPPING, at=AT, who="test", target=target)


def test_an_event_says_who_moved_the_job_and_why(store: Store) -> None:
    put(store, State.RUNNING)
    goto(store, State.STOPPING)
    with store.read() as session:
        event = session.scalars(select(Event)).one()
    assert event.data == {
        "who": "test",
        "from": "running",
        "target": "failed",
        "reason": {"code": "c", "message": "m", "hint": ""},
    }
    assert (event.attempt, event.generation) == (1, 2)


def test_migrations_make_exactly_the_tables_of_the_code(store: Store) -> None:
    with store.engine().connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_a_migrated_database_is_left_as_it_is(tmp_path: Path) -> None:
    first = Store.at(tmp_path)
    put(first, State.QUEUED)
    first.close()
    assert seen(Store.at(tmp_path)) == (State.QUEUED, [])


def test_the_database_refuses_half_a_job_and_survives_a_power_cut(store: Store) -> None:
    with store.engine().connect() as connection:
        pragma = {
            p: connection.exec_driver_sql(f"PRAGMA {p}").scalar()
            for p in ("journal_mode", "foreign_keys", "synchronous")
        }
    assert pragma == {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2}
