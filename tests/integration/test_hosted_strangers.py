"""Scripts after guides of PyTorch, Accelerate and Lightning, hosted as they are: killed, paused, resumed, cancelled."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from integration.hosted import path_of
from integration.runtime_job import start
from integration.test_hosted_torchrun import at_the_gate, lines, processes

from ringleader.wire.package import pack

SCRIPTS = {"sharded": "torch", "accelerated": "accelerate", "lightened": "lightning"}
"""By script, the library that it is written for."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_a_library_goes_on_from_what_it_has_saved(
    cluster: Any, home: Path, ingest: Any, tmp_path: Path, script: str
) -> None:
    if find_spec(SCRIPTS[script]) is None:
        pytest.skip(f"{SCRIPTS[script]} is not installed: tests/README.md says how")
    folder, gate, job = tmp_path / "work", tmp_path / "gate", f"hosted-{script}"
    folder.mkdir()
    (folder / f"{script}.py").write_text(path_of(script).read_text())
    given = {
        "framework": "torchrun",
        "entrypoint": f"{script}.py {gate}",
        "workers": {"min": 2, "max": 2},
        "batch": {},
        "max_failures": 0,  # what ends by a loss or a plan is no failure of the program
    }
    run = start(cluster, home, ingest, pack(folder), job, **given)
    at_the_gate(run, 2)
    gone = processes(job)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    at_the_gate(run, 4)
    assert {"rank 0 of 2 from step 4", "rank 1 of 2 from step 4"} <= set(lines(run))
    assert not set(gone) & set(processes(job)), "no process of the generation before lives on"
    cluster.pause(job, 1, 60.0)
    assert run.outcome()["outcome"] == "paused"
    run.leave_nothing()
    run = start(cluster, home, ingest, pack(folder), job, attempt=2, **given)
    at_the_gate(run, 2)
    assert {"rank 0 of 2 from step 4", "rank 1 of 2 from step 4"} <= set(lines(run))
    cluster.cancel(job, 2, 20.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()
    assert processes(job) == []
    gate.touch()
    run = start(cluster, home, ingest, pack(folder), job, attempt=3, **given)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert {"rank 0 is done", "rank 1 is done"} <= set(lines(run))
    assert ingest.events("program.failed") == []
    run.leave_nothing()
    assert processes(job) == []


@pytest.mark.parametrize("script", ["test_sync", "test_ops"])
def test_what_accelerate_checks_itself_with_runs_out_of_its_wheel(
    cluster: Any, home: Path, ingest: Any, tmp_path: Path, script: str
) -> None:
    scripts = find_spec("accelerate.test_utils.scripts") if find_spec("accelerate") else None
    if scripts is None or scripts.origin is None:
        pytest.skip("accelerate is not installed: tests/README.md says how")
    folder, job = tmp_path / "work", f"hosted-{script.replace('_', '-')}"
    folder.mkdir()
    (folder / f"{script}.py").write_text(Path(scripts.origin).with_name(f"{script}.py").read_text())
    given = {
        "framework": "torchrun",
        "entrypoint": f"{script}.py",
        "workers": {"min": 2, "max": 2},
        "batch": {},
    }
    env = {"ACCELERATE_USE_CPU": "true"}
    run = start(cluster, home, ingest, pack(folder), job, env=env, max_failures=0, **given)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    run.leave_nothing()
    assert processes(job) == []
