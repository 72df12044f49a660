"""Hosted torchrun jobs on a real Ray cluster: an unmodified DDP script trains, is restarted, resized, paused, ended."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from integration.hosted import ddp_path
from integration.runtime_job import Run, start
from waiting import wait_for

from ringleader.wire.package import pack

WORKERS = {"min": 2, "max": 2}


@pytest.fixture
def package(tmp_path: Path) -> bytes:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "ddp.py").write_text(ddp_path().read_text())
    return pack(folder)


def hosted(
    cluster: Any, home: Path, ingest: Any, package: bytes, job: str, arguments: str = "", **spec: Any
) -> Run:
    given = {
        "workers": WORKERS,
        "batch": {},
        **spec,
        "framework": "torchrun",
        "entrypoint": f"ddp.py {arguments}",
    }
    return start(cluster, home, ingest, package, job, **given)


def lines(run: Run) -> list[str]:
    return [record["line"] for record in run.ingest.stream("logs", run.launch.attempt)]


def at_the_gate(run: Run, count: int) -> None:
    """Wait until so many programs have come to the gate, in all generations together."""
    wait_for("programs at the gate", lambda: sum("at the gate" in line for line in lines(run)) >= count)


def processes(job: str) -> list[int]:
    """Of the job's programs and their guards."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"TORCHELASTIC_RUN_ID={job}\0".encode() in environ:
                found.append(int(entry.name))
    return found


def test_a_script_trains_unmodified_and_leaves_nothing(cluster, home, ingest, package):
    run = hosted(cluster, home, ingest, package, "torchrun-plain", "--steps 20")
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert {"rank 0 of 2 from step 0", "rank 1 of 2 from step 0", "rank 0 is done", "rank 1 is done"} <= set(
        lines(run)
    )
    result = outcome["result"]
    assert (result["reproducible"], result["weights_sha256"]) == (False, "")
    assert "torchrun" in result["reproducible_why"]
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start"]
    (warned,) = ingest.events("warning")
    assert "RINGLEADER_CHECKPOINT_DIR" in warned["hint"]
    run.leave_nothing()
    assert processes("torchrun-plain") == []


def test_the_group_starts_anew_from_its_snapshot_when_a_worker_is_killed(
    cluster, home, ingest, package, tmp_path
):
    gate = tmp_path / "gate"
    run = hosted(cluster, home, ingest, package, "torchrun-killed", f"--steps 40 --gate {gate}")
    at_the_gate(run, 2)
    gone = processes("torchrun-killed")
    os.kill(run.pids()["w1"], signal.SIGKILL)
    at_the_gate(run, 4)
    assert {"rank 0 of 2 from step 20", "rank 1 of 2 from step 20"} <= set(lines(run))
    assert not set(gone) & set(processes("torchrun-killed")), "no process of the generation before lives on"
    gate.touch()
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    (lost,) = ingest.events("worker.lost")
    assert lost["worker"] == "w1"
    assert lost["cause"].startswith("died")
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start", "lost"]
    (recovered,) = ingest.events("recovered")
    assert "steps_lost" not in recovered
    assert ingest.events("program.failed") == []
    run.leave_nothing()


def test_a_resize_stops_the_script_which_saves_and_goes_on_in_the_new_world(
    cluster, home, ingest, package, tmp_path
):
    gate = tmp_path / "gate"
    run = hosted(
        cluster,
        home,
        ingest,
        package,
        "torchrun-resized",
        f"--steps 40 --gate {gate}",
        workers={"min": 2, "max": 2},
        batch={"logical_shards": 3},
    )
    at_the_gate(run, 2)
    cluster.resize("torchrun-resized", 1, 2, 3)
    at_the_gate(run, 5)
    assert "rank 2 of 3 from step 20" in lines(run)
    cluster.resize("torchrun-resized", 1, 1, 1)
    at_the_gate(run, 6)
    assert "rank 0 of 1 from step 20" in lines(run)
    gate.touch()
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start", "resize", "resize"]
    assert "rank 0 stops at step 20" in lines(run), "it was asked to with SIGTERM"
    assert ingest.events("worker.lost") == ingest.events("program.failed") == []
    run.leave_nothing()


def test_a_paused_job_goes_on_from_its_snapshot_and_a_cancelled_one_leaves_no_process(
    cluster, home, ingest, package, tmp_path
):
    arguments = f"--steps 40 --gate {tmp_path / 'gate'}"
    run = hosted(cluster, home, ingest, package, "torchrun-paused", arguments)
    at_the_gate(run, 2)
    cluster.pause("torchrun-paused", 1, 60.0)
    assert run.outcome()["outcome"] == "paused"
    run.leave_nothing()
    assert processes("torchrun-paused") == []
    run = hosted(cluster, home, ingest, package, "torchrun-paused", arguments, attempt=2)
    at_the_gate(run, 2)
    assert "rank 0 of 2 from step 20" in lines(run)
    cluster.cancel("torchrun-paused", 2, 20.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()
    assert processes("torchrun-paused") == []


def test_a_script_that_fails_is_restarted_and_then_ends_the_job_with_its_last_words(
    cluster, home, ingest, package
):
    run = hosted(cluster, home, ingest, package, "torchrun-failing", "--steps 20 --fail-at 7", max_failures=1)
    outcome = run.outcome()
    assert outcome["outcome"] == "failed", outcome
    assert outcome["reason"]["code"] == "entrypoint_raised"
    told = outcome["reason"]["message"]
    assert told.startswith("ddp.py ended with exit code 7 on w1 (rank 1, generation 2).")
    assert "about to fail" in told
    assert "failed 2 times (max_failures: 1)" in told
    failed = ingest.events("program.failed")
    assert [(e["rank"], e["failures"], e["most"]) for e in failed] == [(1, 1, 1), (1, 2, 1)]
    assert "rank 1 of 2 from step 5" in lines(run)
    run.leave_nothing()
    assert processes("torchrun-failing") == []


def test_a_supervisor_that_is_killed_stops_no_script(cluster, home, ingest, package, tmp_path):
    gate = tmp_path / "gate"
    run = hosted(
        cluster, home, ingest, package, "torchrun-alone", f"--steps 40 --gate {gate}", debug={"faults": True}
    )
    at_the_gate(run, 2)
    before = processes("torchrun-alone")
    cluster.fault("torchrun-alone", 1, "supervisor", None, 1.0)
    wait_for("its return", lambda: ingest.events("supervisor.returned"))
    assert processes("torchrun-alone") == before
    gate.touch()
    assert run.outcome()["outcome"] == "succeeded"
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start"]
    run.leave_nothing()


def test_a_package_without_the_script_fails_the_job_by_name(cluster, home, ingest, package):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "nowhere",
        batch={},
        framework="torchrun",
        entrypoint="other.py",
        workers=WORKERS,
    )
    reason = run.outcome()["reason"]
    assert reason["code"] == "entrypoint_import"
    assert "other.py is not in the working directory" in reason["message"]
    run.leave_nothing()
