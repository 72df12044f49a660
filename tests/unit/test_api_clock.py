"""A clock that is set, or a machine that stood still, ends nothing: durations are counted by rounds."""

from pathlib import Path

import pytest
from control_plane import Stage, outcome, stage, status

from ringleader_api.clock import SteadyClock

HOUR_S = 3600.0


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_of_the_clock_costs_no_start(here: Stage, jump_s: float) -> None:
    job_id = here.started()
    here.tick()
    here.time.pass_s(jump_s)
    here.tick(3)
    assert (here.state(job_id), here.cluster.starts) == ("starting", [(job_id, 1)])
    here.rounds(310)
    assert here.cluster.starts == [(job_id, 1), (job_id, 2)], "it is given up in its own time"


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_of_the_clock_releases_no_job_before_it_has_saved(here: Stage, jump_s: float) -> None:
    job_id = here.running()
    here.client.post(f"/api/v1/jobs/{job_id}/pause")
    here.tick()
    here.time.pass_s(jump_s)
    here.tick(3)
    assert (here.state(job_id), set(here.cluster.alive)) == ("stopping", {(job_id, 1)})
    here.post(job_id, records=[outcome(1, "paused")])
    here.tick(2)
    assert here.state(job_id) == "paused"


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_jump_of_the_clock_uses_up_no_running_time(here: Stage, jump_s: float) -> None:
    job_id = here.running(max_runtime_s=900)
    here.tick()
    here.time.pass_s(jump_s)
    here.tick(3)
    assert here.state(job_id) == "running"
    here.post(job_id, status=status("running", spent={"wall_s": 5.0}))
    here.rounds(880)
    assert here.state(job_id) == "running"
    here.rounds(20)
    assert here.state(job_id) == "stopping"


class Machine:
    """A machine's two clocks."""

    def __init__(self) -> None:
        self.wall, self.passed_s = 1_700_000_000.0, 50.0
        self.clock = SteadyClock(lambda: self.wall, lambda: self.passed_s)

    def pass_s(self, seconds: float, *, set_by: float = 0.0) -> float:
        """How long it was by the steady clock."""
        before = self.clock()
        self.wall, self.passed_s = self.wall + seconds + set_by, self.passed_s + seconds
        return (self.clock() - before).total_seconds()


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_is_set_is_followed_slowly(jump_s: float) -> None:
    machine = Machine()
    assert machine.pass_s(300) == pytest.approx(300)
    assert machine.pass_s(300, set_by=jump_s) == pytest.approx(300, rel=0.051)
    assert machine.pass_s(0) == 0
    passed = [machine.pass_s(60) for _ in range(2000)]
    assert min(passed) > 56.9
    assert max(passed) < 63.1
    assert machine.clock().timestamp() == pytest.approx(machine.wall), "it is what the machine says again"


def test_that_a_clock_was_set_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    for jump_s in (0.0, 0.0, -HOUR_S, 0.0, 0.0):
        machine.pass_s(1, set_by=jump_s)
    [told] = [record for record in caplog.records if record.getMessage() == "clock.set"]
    assert told.__dict__["fields"] == {"by_s": -3600.0, "followed_within_s": 72000}


def test_running_time_that_a_supervisor_told_counts_for_who_has_just_begun_to_look(here: Stage) -> None:
    job_id = here.running(max_runtime_s=900)
    here.post(job_id, status=status("running", spent={"wall_s": 899.0}))
    again = stage(here.home, here.cluster)
    again.tick()
    assert again.state(job_id) == "running"
    again.post(job_id, status=status("running", spent={"wall_s": 900.0}))
    again.tick()
    assert again.state(job_id) == "stopping"


def test_running_time_of_an_attempt_that_was_lost_in_silence_is_not_forgotten(here: Stage) -> None:
    job_id = here.running(max_runtime_s=900)
    here.tick()
    here.rounds(600)
    here.cluster.alive.clear()
    here.tick()
    here.time.pass_s(2)
    here.tick(2)
    here.post(job_id, 2, status=status("running"))
    here.tick()
    here.rounds(290)
    assert here.state(job_id) == "running"
    here.rounds(10)
    assert here.state(job_id) == "stopping"


def test_a_pause_takes_along_all_that_was_run_while_it_saved(here: Stage) -> None:
    job_id = here.running(max_runtime_s=900)
    here.post(job_id, status=status("running", spent={"wall_s": 400.0}))
    here.client.post(f"/api/v1/jobs/{job_id}/pause")
    here.tick()
    here.post(job_id, status=status("running", spent={"wall_s": 500.0}), records=[outcome(1, "paused")])
    here.tick(2)
    resumed(here, job_id, left_s=400.0)


def test_a_pause_takes_along_what_was_counted_while_nothing_was_told(here: Stage) -> None:
    job_id = here.running(max_runtime_s=900)
    here.post(job_id, status=status("running", spent={"wall_s": 1.0}))
    here.tick()
    here.rounds(500)
    here.client.post(f"/api/v1/jobs/{job_id}/pause")
    here.tick()
    here.post(job_id, records=[outcome(1, "paused")])
    here.tick(2)
    resumed(here, job_id, left_s=400.0)


def resumed(here: Stage, job_id: str, left_s: float) -> None:
    """The next attempt may run for so long, five seconds more or less."""
    assert here.state(job_id) == "paused"
    here.client.post(f"/api/v1/jobs/{job_id}/resume")
    here.tick()
    here.post(job_id, 2, status=status("running", spent={"wall_s": left_s - 5.0}))
    here.tick()
    assert here.state(job_id) == "running"
    here.post(job_id, 2, status=status("running", spent={"wall_s": left_s + 5.0}))
    here.tick()
    assert here.state(job_id) == "stopping"
