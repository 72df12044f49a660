"""A variable of a job file has an effect, or that it has none is said: refused by name, or warned of."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from control_plane import SPEC, stage
from torch.utils.data import TensorDataset

import ringleader
from ringleader.cli.main import main
from ringleader.errors import SpecInvalid
from ringleader.runtime.messages import MemberTask, ProcessIdentity
from ringleader.runtime.worker.member import MemberProcess
from ringleader.spec import JobSpec
from ringleader.wire.package import pack

GOOD: dict[str, Any] = {"name": "a", "entrypoint": "member_job:train", "batch": {"global_size": 4}}


def train(session: ringleader.Session) -> None:
    net = session.model(torch.nn.Linear(1, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for (x,) in session.batches(TensorDataset(torch.zeros(4, 1))):
        session.step(net(x).sum())


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "OMP_NUM_THREADS",
            "7",
            "sets the number of threads of a worker, 2 here; allowed: leave it out and set w",
        ),
        ("MKL_NUM_THREADS", "7", "allowed: leave it out and set workers.cpus: 7"),
        ("OPENBLAS_NUM_THREADS", "all", "allowed: leave it out and set workers.cpus: as many"),
        (
            "PYTHONHASHSEED",
            "5",
            "has no effect here (got '5'): a worker's process starts before it gets",
        ),
        ("LD_LIBRARY_PATH", "/lib", "set it where Ray is started on the nodes"),
        ("LD_PRELOAD", "a.so", "ctypes.CDLL"),
    ],
)
def test_a_variable_that_comes_too_late_is_refused_by_name(name: str, value: str, told: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        JobSpec.parse(GOOD | {"workers": {"cpus": 2.5}, "env": {name: value, "FOO": "1"}})
    (finding,) = refused.value.errors
    assert (finding["pointer"], finding["value"]) == (f"/env/{name}", value)
    assert finding["message"].startswith(f"{name} has no effect here")
    assert told in finding["message"]


def test_the_number_of_threads_that_there_are_is_harmless() -> None:
    for cpus, value in ((0.5, "1"), (2, "2"), (2.5, " 2")):
        JobSpec.parse(GOOD | {"workers": {"cpus": cpus}, "env": {"OMP_NUM_THREADS": value}})


def test_a_body_with_such_a_variable_is_refused_and_a_stored_job_with_one_is_read(tmp_path: Path) -> None:
    late = {**SPEC, "env": {"PYTHONHASHSEED": "5"}}
    answer = stage(tmp_path).client.post("/api/v1/jobs", json=late)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/env/PYTHONHASHSEED")
    assert JobSpec.model_validate(late).env == late["env"]


def member(tmp_path: Path, worker: str, **env: str) -> MemberProcess:
    source = GOOD | {"env": env}
    task = MemberTask(
        "job", 1, worker, "worker", JobSpec.parse(source), tmp_path / "artifacts", tmp_path / "scratch", ""
    )
    heartbeat_thread = SimpleNamespace(start=lambda *_: None, stop=lambda: None, hurry=lambda: None)
    return MemberProcess(task, ProcessIdentity(1, "n0", "10.0.0.7"), SimpleNamespace(), heartbeat_thread)  # type: ignore[arg-type]


def test_a_folder_of_the_path_that_is_not_there_is_a_warning_of_the_first_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    (tmp_path / "work" / "lib").mkdir(parents=True)
    (tmp_path / "work" / "lib" / "here.py").touch()
    told = {}
    for worker in ("w0", "w1"):
        one = member(tmp_path, worker, PYTHONPATH=f"lib:nowhere:$HOME/lib:{tmp_path}/absent:{tmp_path}")
        end = one.run(pack(tmp_path / "work"))
        assert end.reason == "entrypoint_import", (
            "it went on, and its program is in none of those that are there"
        )
        told[worker] = [event.data for event in one._reporter.beat().events if event.kind == "warning"]
    assert [warning["about"] for warning in told["w0"]] == ["PYTHONPATH"] * 3
    for warning, folder in zip(told["w0"], ("nowhere", "$HOME/lib", f"{tmp_path}/absent"), strict=True):
        assert f"the PYTHONPATH folder {folder} does not exist" in warning["message"]
        assert "$HOME are not expanded" in warning["hint"]
    assert told["w1"] == [], "all workers find the same, and one speaks"


def test_validate_says_of_the_path_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "member_job.py").write_text("def train(session): ...\n")
    (tmp_path / "job.yaml").write_text(
        "name: a\nentrypoint: member_job:train\nworking_dir: .\nenv: {PYTHONPATH: nowhere}\n"
    )
    assert main(["validate", str(tmp_path / "job.yaml")]) == 0
    assert capsys.readouterr().err.startswith("the PYTHONPATH folder nowhere does not exist, so nothing")


def test_a_local_session_has_the_jobs_variables_for_as_long_as_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEPT", "before")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_of_this_test.py").write_text("HERE = 1\n")
    environ, path = dict(os.environ), list(sys.path)
    env = {"FOO": "bar", "KEPT": "within", "PYTHONPATH": "lib"}
    with suppress(ZeroDivisionError), ringleader.local_session(GOOD | {"env": env}):
        assert {name: os.environ[name] for name in env} == env
        assert __import__("only_of_this_test").HERE == 1
        raise ZeroDivisionError
    assert (dict(os.environ), sys.path) == (environ, path)


def test_a_local_session_warns_of_a_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ringleader.local_session(GOOD | {"env": {"PYTHONPATH": "nowhere"}}) as session:
        train(session)
    assert "ringleader: the PYTHONPATH folder nowhere does not exist" in capsys.readouterr().out
