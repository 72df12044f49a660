"""What a pass of the scheduler reads: rows each time, a job file once in each of its versions."""

from pathlib import Path
from typing import Any

import pytest
from control_plane import Stage, stage
from sqlalchemy import event

from ringleader_api.services.jobs import claims
from ringleader_api.services.jobs.claims import Register


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_a_job_file_is_read_once_in_each_of_its_versions(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "READ_AT_ONCE", 2)
    first, second, third = (here.submit(workers={"min": 1, "max": n}) for n in (1, 2, 3))
    register, files = Register(), []

    @event.listens_for(here.control.store.engine(), "before_cursor_execute")
    def _asked(_c: Any, _k: Any, statement: str, parameters: Any, _x: Any, many: bool) -> None:
        if "spec" in statement.partition("FROM")[0]:
            files.append(set(parameters))

    def most() -> dict[str, int]:
        with here.control.store.read() as session:
            return {job.id: terms.workers_max for job, terms in register.jobs(session)}

    assert most() == {first: 1, second: 2, third: 3}
    assert sorted(map(len, files)) == [1, 2], "no more at once than that"
    files.clear()
    assert most() == {first: 1, second: 2, third: 3}
    assert files == []
    assert here.client.patch(f"/api/v1/jobs/{second}", json={"workers": {"max": 1}}).is_success
    here.client.post(f"/api/v1/jobs/{third}/cancel")
    files.clear()
    assert most() == {first: 1, second: 1}
    assert files == [{second}]
    assert register._known.keys() == {first, second}
