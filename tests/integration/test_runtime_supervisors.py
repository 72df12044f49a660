"""Attempts on a real Ray cluster whose supervisor or warm pool is killed, frozen or gone for good."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from integration.one_process import assert_bits_of_one_process
from integration.runtime_job import alive, start
from pace import gates
from waiting import wait_for

from ringleader.errors import RingleaderError
from ringleader.runtime.nodes.fork_worker import forks
from ringleader.runtime.records.spool import RECORDS, unposted


def test_a_supervisor_that_is_killed_comes_back_and_its_workers_train_on(
    cluster, home, ingest, package, tmp_path
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "headless",
        workers={"min": 2, "max": 2},
        params={"epochs": 60, "pause": 0.01, "gates": gates(tmp_path, 30, 100, 170)},
        debug={"ledger": True},
        checkpoint={"every_steps": 40},
    )
    run.until_world(2)
    run.until_step(10)
    before = run.pids()
    for kill, gate in ((1, 30), (2, 100)):
        cluster.fault("headless", 1, "supervisor", None, 1.0)
        wait_for(
            "a supervisor that is back", lambda n=kill: len(ingest.events("supervisor.returned")) == n, 60
        )
        run.open_gate(gate)
        run.until_step(run.step() + 10)
        assert run.pids() == before
    run.open_gate(170)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [e["start"] for e in ingest.events("supervisor.returned")] == [2, 3]
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start"], "nobody had to park"
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 241))
    saved = [e["uri"].rpartition("/")[2] for e in ingest.events("checkpoint.saved")]
    # Of those that were complete when it came back only the newest is made.
    assert saved == sorted(set(saved))
    assert saved[-1].startswith("step-000000000240-")
    assert saved[-1].endswith("-end")
    lines = [r["line"] for r in ingest.stream("logs")]
    assert lines == [HELLO, *(f"epoch {n}" for n in range(60)), "goodbye"]
    assert_bits_of_one_process(run, outcome, tmp_path)
    run.leave_nothing()


def test_a_supervisor_and_a_worker_are_killed_together_and_again_in_the_recovery(
    cluster, home, ingest, package, tmp_path
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "both",
        workers={"min": 1, "max": 3},
        params={"epochs": 80, "pause": 0.01, "gates": gates(tmp_path, 60)},
        debug={"ledger": True},
    )
    run.until_world(3)
    run.until_step(run.step() + 10)
    before = run.pids()
    for pid in (pid_of_actor("job-both-a1"), before["w1"]):
        os.kill(pid, signal.SIGKILL)
    wait_for("a plan of the survivors", lambda: len(ingest.events("supervisor.returned")) == 1, 60)
    os.kill(pid_of_actor("job-both-a1"), signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w3"], 60)
    run.open_gate(60)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [e["worker"] for e in ingest.events("worker.lost")] == ["w1"]
    joined = {e["worker"]: e["pid"] for e in ingest.events("worker.joined")}
    assert {w: joined[w] for w in ("w0", "w2")} == {w: before[w] for w in ("w0", "w2")}
    formed = [r["generation"] for r in ingest.stream("events") if r["type"] == "generation.formed"]
    assert formed == sorted(set(formed)), "a generation was issued twice"
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 321))
    assert_bits_of_one_process(run, outcome, tmp_path)
    run.leave_nothing()


def test_a_supervisor_that_is_killed_behind_the_last_step_still_tells_the_outcome_once(
    cluster, home, ingest, package, tmp_path
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "late",
        workers={"min": 2, "max": 2},
        params={"epochs": 12, "pause": 0.005, "gates": gates(tmp_path, 12)},
        debug={"ledger": True},
    )
    run.until_step(10)
    ingest.away = True  # it cannot get rid of the outcome
    run.open_gate(12)
    wait_for("the ledger", (run.launch.artifacts / "ledger.parquet").exists, 60)
    os.kill(pid_of_actor("job-late-a1"), signal.SIGKILL)
    ingest.away = False
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert len(ingest.stream("outcome")) == 1
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 49))
    assert_bits_of_one_process(run, outcome, tmp_path)
    run.leave_nothing()


def test_a_supervisor_that_is_gone_for_good_takes_its_workers_with_it_and_gets_no_second_actor(
    cluster, home, ingest, package
):
    import ray

    run = start(
        cluster,
        home,
        ingest,
        package,
        "orphaned",
        workers={"min": 1, "max": 2},
        params={"epochs": 5000, "pause": 0.01},
    )
    run.until_step(3)
    pids = run.pids()
    assert not cluster.node_lost("orphaned", 1)
    assert cluster.node_lost("orphaned", 2), "never asked for on this cluster"
    ray.kill(ray.get_actor("job-orphaned-a1", namespace="ringleader"))
    wait_for("ended workers", lambda: not [p for p in pids.values() if alive(p)])
    wait_for("a supervisor less", lambda: not cluster.supervisors())
    with pytest.raises(RingleaderError, match="has already had a supervisor"):
        cluster.start(run.launch)
    assert not cluster.node_lost("orphaned", 1), "it has its node still: the supervisor failed"
    run.leave_nothing(orderly=False)


def test_a_supervisor_that_is_let_go_while_nothing_it_posts_arrives_leaves_it_to_be_taken_in(
    cluster, home, ingest, package
):
    params = {"epochs": 5000, "pause": 0.01}
    run = start(cluster, home, ingest, package, "unheard", workers={"min": 1, "max": 1}, params=params)
    run.until_step(3)
    ingest.away = True
    query = "SELECT count(*) FROM record WHERE stream = 'metrics'"

    def spooled() -> bool:
        with closing(sqlite3.connect(run.launch.spool / RECORDS)) as records:
            return int(records.execute(query).fetchone()[0]) >= 5

    wait_for("steps that nobody heard of", spooled)
    cluster.release("unheard", 1)
    ingest.away = False
    left = [record for told in unposted(run.launch.spool) for record in told]
    steps = [r["step"] for r in (*ingest.stream("metrics"), *left) if "step" in r]
    assert steps == list(range(1, len(steps) + 1))
    assert [r for r in left if r["stream"] == "outcome"] == []
    run.leave_nothing()


def test_workers_get_secrets_from_a_restarted_supervisor_too_and_a_frozen_one_is_released(
    cluster, home, ingest, package, tmp_path
):
    import ray

    folder = tmp_path / "told"
    folder.mkdir()
    ingest.secrets = {"HF_TOKEN": "a-5ecret-v4lue"}
    run = start(
        cluster,
        home,
        ingest,
        package,
        "trusted",
        function="trusted",
        secrets={"HF_TOKEN": "hub"},
        workers={"min": 1, "max": 2},
        params={"epochs": 5000, "pause": 0.01, "told": str(folder)},
    )
    run.until_world(2)
    run.until_step(3)
    supervisor = pid_of_actor("job-trusted-a1")
    os.kill(supervisor, signal.SIGKILL)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    wait_for("returned", lambda: ingest.events("supervisor.returned"), 60)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w2"], 60)
    joined = {str(e["pid"]) for e in ingest.events("worker.joined")}
    wait_for("all three", lambda: {p.name for p in folder.iterdir() if content_of(p)} >= joined, 60)
    assert {path.read_text() for path in folder.iterdir()} == {"a-5ecret-v4lue"[::-1]}
    assert [path for path in home.rglob("*") if b"a-5ecret-v4lue" in content_of(path)] == []
    frozen = pid_of_actor("job-trusted-a1")
    asked = [("trusted", 1), ("trusted", 2)]
    wait_for("answer", lambda: cluster.answers(asked) == {("trusted", 1): True, ("trusted", 2): False})
    os.kill(frozen, signal.SIGSTOP)
    assert cluster.answers(asked[:1]) == {("trusted", 1): False}
    assert cluster.supervisors() == [("trusted", 1)], "for Ray it lives"
    cluster.release("trusted", 1)
    assert cluster.supervisors() == []
    wait_for("end of the frozen process", lambda: not alive(frozen))
    with pytest.raises(ValueError, match="Failed to look up"):
        ray.get_actor("job-trusted-a1", namespace="ringleader")
    wait_for("ended workers", lambda: not [p for p in run.pids().values() if alive(p)])
    total = cluster.capacity().cpus
    wait_for("free CPUs", lambda: cluster.capacity().available.get("CPU", 0) == total)


HELLO = "hello from the training function"


def test_losing_the_warm_pool_disturbs_no_job(cluster, home, ingest, package):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "poolless",
        workers={"min": 1, "max": 2},
        params={"epochs": 5000, "pause": 0.01},
    )
    run.until_world(2)
    before = run.pids()
    os.kill(pid_of_actor("warm-pool"), signal.SIGKILL)
    run.until_step(run.step() + 5)
    os.kill(before["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: len(ingest.events("worker.joined")) >= 3, 90)
    assert run.pids()["w0"] == before["w0"]
    cluster.cancel("poolless", 1, 0.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()


def test_the_idle_processes_a_job_took_come_back(cluster, home, ingest, package):
    def warm() -> bool:
        return list(cluster.warmed().values()) == [3]

    wait_for("a warm cluster", warm, 90)
    workers, params = {"min": 2, "max": 2}, {"epochs": 5000, "pause": 0.01}
    run = start(cluster, home, ingest, package, "taker", workers=workers, params=params)
    run.until_world(2)
    taken = set(run.pids().values())
    cluster.cancel("taker", 1, 0.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()
    wait_for("a warm cluster again", warm, 90)
    assert not [pid for pid in taken if alive(pid)]


@pytest.mark.skipif(not forks(), reason="nothing is forked here")
def test_the_processes_of_a_job_are_forks_of_one(cluster, home, ingest, package):
    run = start(
        cluster, home, ingest, package, "forked", workers={"min": 2, "max": 2}, params={"epochs": 2000}
    )
    run.until_world(2)
    (parent,) = {parent_of(pid) for pid in (*run.pids().values(), pid_of_actor("job-forked-a1"))}
    assert "zygote.py" in Path(f"/proc/{parent}/cmdline").read_text()
    cluster.cancel("forked", 1, 0.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()


def content_of(path: Path) -> bytes:
    """Of a file; nothing of what is none, or no more."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pid_of_actor(name: str) -> int:
    """The process of an actor that lives, or is coming back, from the cluster's own table."""
    from ray._private.state import actors

    def living() -> list[int]:
        return [int(a["Pid"]) for a in actors().values() if a["Name"] == name and a["State"] == "ALIVE"]

    (found,) = wait_for(f"living {name}", living)
    return found
