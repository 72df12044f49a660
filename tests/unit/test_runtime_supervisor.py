"""What a supervisor does by itself, without Ray's processes."""

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ringleader.elastic.instructions import End

if TYPE_CHECKING:
    from ringleader.runtime.supervisor.actor import Supervisor


class Begun(Exception):
    """The supervisor has found the pool, and looks for what was written down."""


class Notes:
    def noted(self, name: str) -> bytes | None:
        raise Begun


def returning(monkeypatch: pytest.MonkeyPatch, errors: list[Exception]) -> "Supervisor":
    """Its node is back, and the warm pool that died there still has its name: looks for it end with these `errors`."""
    from ringleader.runtime.supervisor.actor import Supervisor

    def find_pool() -> None:
        if errors:
            raise errors.pop(0)

    supervisor = Supervisor.__new__(Supervisor)
    supervisor._released = threading.Event()
    supervisor._worker_group = supervisor._torch_stores = None
    supervisor._launch = supervisor._record_log = Notes()  # type: ignore[assignment]
    monkeypatch.setattr(supervisor, "_find_pool", find_pool)
    monkeypatch.setattr(supervisor, "_keep_pool", lambda: None)
    monkeypatch.setattr(supervisor, "_watch_nodes", lambda: None)
    return supervisor


def test_a_supervisor_that_comes_back_waits_for_the_pool_that_died_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import ActorDiedError

    monkeypatch.setattr("ringleader.runtime.supervisor.actor.POOL_S", 0.0)
    errors: list[Exception] = [ActorDiedError(), ValueError("the name is taken")]
    with pytest.raises(Begun):
        returning(monkeypatch, errors)._run()
    assert errors == []


def test_a_supervisor_that_finds_no_pool_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import ActorDiedError

    monkeypatch.setattr("ringleader.runtime.supervisor.actor.POOL_DEADLINE_S", -1.0)
    errors: list[Any] = [ActorDiedError(), ActorDiedError()]
    with pytest.raises(ActorDiedError):
        returning(monkeypatch, errors)._run()
    assert len(errors) == 1


class Told:
    outcomes: tuple[str, ...] = ()

    def outcome(self, end: End, finished: dict[str, Any] | None) -> None:
        self.outcomes += (end.outcome,)


class FakeWorkerGroup:
    def close(self) -> None: ...


@pytest.mark.parametrize("released", [False, True])
def test_an_attempt_that_ends_because_it_is_let_go_tells_no_end_of_its_own(
    monkeypatch: pytest.MonkeyPatch, *, released: bool
) -> None:
    supervisor, told = returning(monkeypatch, []), Told()
    supervisor._worker_group, supervisor._record_log = FakeWorkerGroup(), told  # type: ignore[assignment]

    def run() -> tuple[End, None]:
        if released:
            supervisor._released.set()
        return End("failed", "min_workers_lost", "nobody is left"), None

    monkeypatch.setattr(supervisor, "_run", run)
    supervisor._work()
    assert told.outcomes == (() if released else ("failed",))
