"""Which account a job runs under: the operator's table says it, for each user; nobody else chooses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import NOBODY, needs_root, open_folder
from control_plane import RESULT, SPEC, Stage, event, outcome, stage, status

from ringleader.accounts import Account, RunAs, RunAsImpossible
from ringleader_api.settings import Settings, SettingsInvalid

pytestmark = needs_root
SUBMITTER = {"every": "submitter"}
NAME = "step-000000000008-a1-g1"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where jobs write."""
    with open_folder() as base:
        yield base / "jobs"


@pytest.fixture
def here(tmp_path: Path, folder: Path) -> Stage:
    return stage(tmp_path / "home", run_as="admin=nobody, bo=daemon", run_as_folder=folder)


def test_a_job_is_launched_under_the_account_of_who_submitted_it(here: Stage, folder: Path) -> None:
    job_id = here.started()
    assert here.cluster.alive[job_id, 1].run_as == RunAs(Account("nobody", NOBODY, NOBODY), folder)
    answer = here.user("bo", **SUBMITTER).post("/api/v1/jobs", json={**SPEC, "workers": {"max": 1}})
    here.tick()
    run_as = here.cluster.alive[answer.json()["id"], 1].run_as
    assert run_as is not None
    assert run_as.account.name == "daemon"


def test_who_has_no_account_submits_nothing_and_a_job_of_theirs_that_waits_does_not_start(
    here: Stage, folder: Path
) -> None:
    dee = here.user("dee", **SUBMITTER)
    answer = dee.post("/api/v1/jobs", json=SPEC)
    assert (answer.status_code, answer.json()["code"]) == (403, "no_account")
    assert "the user dee has no account" in answer.json()["detail"]
    assert "RINGLEADER_RUN_AS" in answer.json()["hint"]
    assert dee.post("/api/v1/jobs?dry_run=true", json=SPEC).status_code == 403
    waiting = here.submit(max_failures=0)
    here.control.close()
    later = stage(here.home, here.cluster, run_as="bo=daemon", run_as_folder=folder)
    later.tick(2)
    assert later.cluster.starts == []
    told = later.job(waiting)
    assert told["state"] == "failed"
    assert "the user admin has no account" in told["reason"]["message"]


def test_credentials_of_the_stacks_nodes_serve_no_job(here: Stage) -> None:
    answer = here.client.post("/api/v1/jobs", json={**SPEC, "checkpoint": {"uri": "s3://bucket/there"}})
    assert answer.status_code == 403
    assert "which do not have the nodes' credentials" in answer.json()["detail"]
    here.submit(checkpoint={"uri": "/shared/there"})


def test_what_a_job_has_left_in_its_own_folder_is_not_opened_from_here_and_goes_with_it(
    here: Stage, folder: Path
) -> None:
    job_id = here.running()
    own = [folder / name / job_id for name in ("checkpoints", "jobs")]
    own += [folder / "scratch" / f"{job_id}-a1"]
    for place in own:
        place.mkdir(parents=True)
        (place / "passwd").symlink_to("/etc/passwd")
    uri = f"{own[0]}/{NAME}"
    saved = {"step": 8, "uri": uri, "size_bytes": 1, "copied_s": 0.1, "removed": []}
    here.post(job_id, records=[event(1, "checkpoint.saved", **saved)])
    told = here.client.get(f"/api/v1/jobs/{job_id}/checkpoints/{NAME}/weights")
    assert (told.status_code, told.json()["code"]) == (409, "not_exported")
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)], status=status("running"))
    here.tick(2)
    assert here.client.delete(f"/api/v1/jobs/{job_id}").status_code == 204
    here.tick(2)
    assert [place for place in own if place.exists()] == []
    assert Path("/etc/passwd").exists()


@pytest.mark.parametrize("given", [False, True])
def test_a_job_whose_checkpoints_are_out_of_reach_since_the_table_changed_does_not_begin_from_nothing(
    tmp_path: Path, folder: Path, given: bool
) -> None:
    """`given`: it had an account before, and has none any more."""
    table = {"run_as": "nobody", "run_as_folder": folder}
    here = stage(tmp_path / "home", **(table if given else {}))
    job_id = here.running()
    kept = (folder if given else here.home) / "checkpoints" / job_id / NAME
    kept.mkdir(parents=True)
    saved = {"step": 8, "uri": str(kept), "size_bytes": 1, "copied_s": 0.1, "removed": []}
    here.post(job_id, records=[event(1, "checkpoint.saved", **saved)])
    here.client.post(f"/api/v1/jobs/{job_id}/pause")
    here.post(job_id, records=[event(2, "x"), outcome(1, "paused")])
    here.tick(2)
    assert here.state(job_id) == "paused"
    here.control.close()
    later = stage(here.home, here.cluster, **({} if given else table))
    later.client.post(f"/api/v1/jobs/{job_id}/resume")
    later.tick(3)
    assert later.cluster.starts == [(job_id, 1)]
    told = later.job(job_id)
    assert (told["state"], told["reason"]["code"]) == ("failed", "checkpoint_unreadable")
    assert "since RINGLEADER_RUN_AS or RINGLEADER_RUN_AS_FOLDER was changed" in told["reason"]["message"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"run_as": "", "run_as_folder": "/jobs"}, "no effect without RINGLEADER_RUN_AS: set both"),
        ({"run_as": "nobody"}, "needs RINGLEADER_RUN_AS_FOLDER"),
        ({"run_as": "nobody", "run_as_folder": "below"}, "an absolute path outside RINGLEADER_HOME"),
        ({"run_as": "nobody", "run_as_folder": "HOME"}, "an absolute path outside RINGLEADER_HOME"),
        ({"run_as": "nobody", "run_as_folder": "/tmp/closed/jobs"}, "cannot pass through it"),
        (
            {"run_as": "no-such-account", "run_as_folder": "/tmp/closed/jobs"},
            "not an account of this machine",
        ),
    ],
)
def test_settings_that_would_be_no_wall_keep_the_control_plane_from_starting(
    tmp_path: Path, folder: Path, settings: dict[str, str], said: str
) -> None:
    closed = folder.parent / "closed"
    closed.mkdir(mode=0o700)
    asked = (
        settings.get("run_as_folder", "")
        .replace("/tmp/closed", str(closed))
        .replace("HOME", str(tmp_path / "jobs"))
    )
    with pytest.raises((RunAsImpossible, SettingsInvalid), match=said):
        stage(tmp_path, run_as=settings["run_as"], run_as_folder=asked or None)


def test_a_home_that_others_may_enter_is_none_beside_jobs_of_other_accounts(
    tmp_path: Path, folder: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    with pytest.raises(SettingsInvalid, match="is open to other accounts"):
        stage(home, run_as="nobody", run_as_folder=folder)


def test_without_a_table_jobs_run_as_ever(tmp_path: Path) -> None:
    here = stage(tmp_path)
    assert here.cluster.alive[here.started(), 1].run_as is None
    assert Settings(home=tmp_path).run_as == ""
