"""Sweeps by the SDK and on the command line, against the real application."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import URL, Stage, stage
from test_api_sweeps import ASHA, SWEEP, Trials
from test_cli_access import Inside

from ringleader.cli.main import main
from ringleader.client import Client
from ringleader.client.sweeps import NoSuchSweep
from ringleader.errors import SpecInvalid


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path / "home")


def client(here: Stage) -> Client:
    return Client(URL, (here.home / "token").read_text(), transport=Inside(here), patience_s=0)


def written(tmp_path: Path, **changes: Any) -> Path:
    """A sweep file whose template is a job file beside it, with a folder to pack."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def train(session): pass\n")
    job = {"name": "any", "entrypoint": "mine:train", "working_dir": "code", "workers": {"min": 1, "max": 1}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({**SWEEP, "template": {"job": "job.yaml"}, **changes}))
    return file


def test_a_job_file_beside_the_sweep_file_is_its_template_and_its_folder_is_sent_once(
    here: Stage, tmp_path: Path
) -> None:
    made = client(here).sweep(written(tmp_path))
    here.tick()
    jobs = here.client.get("/api/v1/jobs?label=sweep=lr").json()["items"]
    assert {job["spec"]["entrypoint"] for job in jobs} == {"mine:train"}
    assert {job["spec"]["working_dir"] for job in jobs} == {made.view.spec["template"]["working_dir"]}
    assert made.view.spec["template"]["working_dir"].startswith("sha256:")


def test_the_trials_come_best_first_and_a_sweep_is_found_by_name_or_prefix(here: Stage) -> None:
    known = client(here)
    made = known.sweep({**SWEEP, "promotion": ASHA, "parallel": 3})
    here.tick()
    trials = Trials(here, made.id)
    for number, loss in enumerate([0.5, 0.3, 0.4]):
        trials.reach(number, 10, loss)
    here.tick()
    assert [one.number for one in made.trials()] == [1, 2, 0]
    best = made.refresh().best()
    assert best is not None
    assert (best.number, best.scores) == (1, [0.3])
    assert [known.sweeps.find(text).id for text in ("lr", made.id, made.id[:20])] == [made.id] * 3
    with pytest.raises(NoSuchSweep):
        known.sweeps.find("other")
    assert made.cancel().wait(timeout=5).view.state == "cancelled"


def test_what_is_wrong_is_refused_before_anything_is_sent(here: Stage, tmp_path: Path) -> None:
    with pytest.raises(SpecInvalid, match="method"):
        client(here).sweep(written(tmp_path, method="guess"))
    with pytest.raises(SpecInvalid, match="/template/job"):
        client(here).sweep({**SWEEP, "template": {"job": "nowhere.yaml"}})


def test_the_commands_of_sweeps(here: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here.tick()

    def run(*arguments: str) -> str:
        assert main(list(arguments), connect=lambda: client(here)) == 0
        return capsys.readouterr().out

    file = str(written(tmp_path))
    assert "nothing was submitted" in run("sweep", file, "--dry-run")
    assert run("sweeps") == "no sweeps\n"
    made = json.loads(run("sweep", file, "-o", "json"))
    here.tick()
    assert made["id"] in run("sweeps")
    shown = run("sweeps", "show", "lr")
    assert "loss (minimize)" in shown
    assert f"ringleader jobs --label sweep_id={made['id']}\n" in shown
    assert shown.count("working") == 2
    assert "params.lr=0.1" in shown
    assert [json.loads(run("sweeps", how, "lr", "-o", "json"))["state"] for how in ("pause", "resume", "cancel")] == [
        "paused", "running", "cancelled",
    ]  # fmt: skip
    assert main(["sweep", file, "--dry-run", "--follow"], connect=lambda: client(here)) == 2
    assert main(["sweeps", "show", "other"], connect=lambda: client(here)) == 1
