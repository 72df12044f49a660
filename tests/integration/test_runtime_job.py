"""Attempts on a real Ray cluster with real training: from start to outcome, through a kill, a resize, a cancel."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from integration.one_process import assert_bits_of_one_process
from integration.runtime_job import TRAIN, alive, start
from trace_file import check_nested, complete, inside, is_step, read, steps_of, workers
from waiting import wait_for

from ringleader.errors import RingleaderError
from ringleader.runtime.cluster import FaultMissed
from ringleader.runtime.node_scratch import copies_of
from ringleader.train.local import run_local


def test_a_job_trains_to_its_outcome_and_leaves_nothing(cluster, home, ingest, package):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "plain",
        workers={"min": 2, "max": 2},
        params={"epochs": 5},
        debug={"ledger": True},
    )
    cluster.start(run.launch)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    result = outcome["result"]
    assert result["steps"] == 20
    assert len(result["weights_sha256"]) == 64
    assert Path(result["weights_uri"].removeprefix("file://")).exists()
    metrics = ingest.stream("metrics")
    assert [m["step"] for m in metrics] == list(range(1, 21))
    lines = [(r["worker"], r["line"]) for r in ingest.stream("logs")]
    assert ("w0", "goodbye") in lines
    assert ("w1", "hello from the training function") in lines
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start"]
    run.leave_nothing()
    from ringleader.runtime import claims  # it imports Ray

    claims.claim("plain-too", 1)
    assert claims.claimed("plain", 1)
    cluster.forget("plain")
    assert [claims.claimed(job, 1) for job in ("plain", "plain-too")] == [False, True]


def test_a_killed_worker_is_replaced_while_the_others_keep_their_processes(
    cluster, home, ingest, package, tmp_path
):
    """They read one copy of a Parquet file, that is gone with the last of them."""
    x = pa.array([[float(i % 8 == j) for j in range(8)] for i in range(64)], pa.list_(pa.float32()))
    y = pa.array([i % 8 for i in range(64)], pa.float32())
    pq.write_table(pa.table({"x": x, "y": y}), tmp_path / "rows.parquet")
    run = start(
        cluster,
        home,
        ingest,
        package,
        "killed",
        workers={"min": 1, "max": 3},
        params={"epochs": 60, "pause": 0.01, "rows": str(tmp_path / "rows.parquet")},
        data={"distribution": "replicated"},
    )
    run.until_world(3)
    run.until_step(run.step() + 10)
    before = run.pids()
    assert len(list(copies_of(run.launch.scratch.name).glob("*/*.parquet"))) == 1
    os.kill(before["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w3"])
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert outcome["result"]["steps"] == 240
    joined = {e["worker"]: e["pid"] for e in ingest.events("worker.joined")}
    assert all(joined.values())
    assert {w: joined[w] for w in ("w0", "w2")} == {w: before[w] for w in ("w0", "w2")}
    (lost,) = ingest.events("worker.lost")
    assert (lost["worker"], lost["pid"], lost["cause"]) == ("w1", before["w1"], "died")
    (recovered,) = ingest.events("recovered")
    assert recovered["steps_lost"] == 0
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 241))
    assert [e["cause"] for e in ingest.events("generation.formed")][-2:] == ["lost", "join"]
    run.leave_nothing()


def test_a_trace_holds_every_settled_step_once_through_a_kill(cluster, home, ingest, package):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "traced",
        workers={"min": 1, "max": 2},
        params={"epochs": 60, "pause": 0.01},
        debug={"trace": True},
    )
    run.until_world(2)
    run.until_step(run.step() + 10)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w2"])
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    events = read(Path(outcome["result"]["trace_uri"].removeprefix("file://")))
    check_nested(events)
    steps = steps_of(events)
    assert steps["w0"] == list(range(1, 241))
    for other in ("w1", "w2"):  # from its first step to its last one that was settled
        assert steps[other] == list(range(steps[other][0], steps[other][-1] + 1))
    assert steps["w2"][-1] == 240
    exposed = {m["step"]: m["values"]["comm_exposed_fraction"] for m in ingest.stream("metrics")}
    (survivor,) = [process for process, worker in workers(events).items() if worker == "w0"]
    for step in (e for e in events if is_step(e) and e["pid"] == survivor):
        waits = [e["dur"] for e in inside(events, step) if e["name"] == "exposed"]
        # Both ends of each span are rounded to a nanosecond.
        rounding = 1e-3 * (len(waits) + 1) / step["dur"]
        assert sum(waits) / step["dur"] == pytest.approx(
            exposed[step["args"]["first"]], rel=1e-6, abs=rounding
        )
    (broken,) = [
        e for e in complete(events) if e["pid"] == survivor and e["tid"] == 0 and "broken" in e["args"]
    ]
    assert broken["name"] in {"backward", "exchange"}
    recoveries = [e for e in complete(events) if e["name"] == "recovery" and e["pid"] == survivor]
    assert [
        sorted(i["name"] for i in inside(events, r) if i["name"] in {"regroup", "heal"}) for r in recoveries
    ] == [["heal", "regroup"]] * len(recoveries)
    assert len(recoveries) >= 2  # after the loss, and at the boundary where the replacement joined
    buckets = [e for e in complete(events) if e["cat"] == "buckets" and "broken" not in e["args"]]
    assert {(e["args"]["schedule"], e["args"]["bytes"] > 0) for e in buckets} == {("in_place", True)}
    run.leave_nothing()


def test_a_stopped_worker_is_lost_in_two_seconds_and_one_without_progress_is_told_and_then_lost(
    cluster, home, ingest, package, tmp_path
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "frozen",
        workers={"min": 1, "max": 2},
        policy={"stall_timeout_s": 3},
        params={"epochs": 5000, "pause": 0.01, "hang": str(tmp_path)},
    )
    run.until_world(2)
    run.until_step(run.step() + 5)
    stopped_at = time.monotonic()
    assert "SIGSTOP" in cluster.fault("frozen", 1, "freeze", "w1", 1.0)
    wait_for("recovery", lambda: ingest.events("recovered"))
    assert time.monotonic() - stopped_at < 2.0
    run.until_world(2)
    run.until_step(run.step() + 5)
    with pytest.raises(FaultMissed, match="w1"):  # a ghost cannot be harmed
        cluster.fault("frozen", 1, "kill", "w1", 1.0)
    slowed_at = run.step()
    cluster.fault("frozen", 1, "slow", "w2", 1.0)
    run.until_step(slowed_at + 20)
    (tmp_path / str(run.pids()["w0"])).touch()
    wait_for("another recovery", lambda: len(ingest.events("recovered")) == 2)
    assert [(e["worker"], e["rank"], e["phase"]) for e in ingest.events("worker.stalled")] == [
        ("w0", 0, "forward")
    ]
    lost = ingest.events("worker.lost")
    assert [(e["worker"], e["rank"], e["cause"]) for e in lost] == [("w1", 1, "frozen"), ("w0", 0, "stalled")]
    assert lost[0]["phase"] in {"forward", "exchange", "committed"}
    assert lost[1]["phase"] == "forward"
    cluster.cancel("frozen", 1, 20.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()


def test_a_resize_changes_the_world_at_a_boundary_and_loses_nobody(cluster, home, ingest, package):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "resized",
        workers={"min": 1, "max": 3},
        params={"epochs": 2000, "pause": 0.01},
    )
    run.until_world(3)
    cluster.resize("resized", 1, 1, 1)
    run.until_world(1)
    cluster.resize("resized", 1, 1, 2)
    run.until_world(2)
    cluster.cancel("resized", 1, 20.0)
    assert run.outcome()["outcome"] == "cancelled"
    assert not ingest.events("worker.lost")
    run.leave_nothing()


def test_an_exception_of_the_training_function_ends_the_attempt_with_its_traceback(
    cluster, home, ingest, package
):
    run = start(cluster, home, ingest, package, "raises", function="broken", workers={"min": 1, "max": 1})
    outcome = run.outcome()
    assert outcome["reason"]["code"] == "entrypoint_raised"
    assert "ZeroDivisionError: on purpose" in outcome["reason"]["message"]
    run.leave_nothing()


def test_a_function_that_cannot_be_imported_is_named(cluster, home, ingest, package):
    run = start(cluster, home, ingest, package, "absent", function="nowhere", workers={"min": 1, "max": 1})
    assert run.outcome()["reason"]["code"] == "entrypoint_import"
    run.leave_nothing()


def test_training_goes_on_while_the_control_plane_is_away(cluster, home, ingest, package):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "alone",
        workers={"min": 1, "max": 1},
        params={"epochs": 12, "pause": 0.005},
    )
    run.until_step(3)
    ingest.away = True
    wait_for("finished weights", (run.launch.artifacts / "weights.safetensors").exists, 60)
    ingest.away = False
    assert run.outcome()["outcome"] == "succeeded"
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 49))
    run.leave_nothing()


def test_parameter_servers_give_the_bits_of_the_ring(cluster, home, ingest, package):
    spec = {"workers": {"min": 2, "max": 2}, "params": {"epochs": 2}}
    digests = []
    mixed = [{"inter_node": "parameter_server"}, {"intra_node": "parameter_server", "servers": 2}]
    for number, sync in enumerate(("ring", "parameter_server", *mixed)):
        run = start(cluster, home, ingest, package, f"as-{number}", sync=sync, **spec)
        outcome = run.outcome()
        assert outcome["outcome"] == "succeeded", outcome
        digests.append(outcome["result"]["weights_sha256"])
        run.leave_nothing()
        ingest.forget()
    assert len(set(digests)) == 1


COPIES = {"inter_node": "ring", "intra_node": "parameter_server", "servers": 2}
BACKED = {"inter_node": "parameter_server", "intra_node": "parameter_server", "server_backups": 1}


@pytest.mark.parametrize(("name", "sync"), [("copies", COPIES), ("backed", BACKED)])
def test_a_killed_server_that_has_a_copy_or_a_backup_is_replaced_and_the_weights_stay_the_same(
    cluster, home, ingest, package, tmp_path, name, sync
):
    spec = {"workers": {"min": 2, "max": 2}, "params": {"epochs": 60, "pause": 0.01}, "sync": sync}
    run = start(cluster, home, ingest, package, name, **spec)
    run.until_world(2)
    run.until_step(run.step() + 3)
    before = run.pids()
    assert str(before["s1"]) in cluster.fault(name, 1, "server", "s1", 1.0)
    wait_for("replacement", lambda: len(ingest.events("worker.joined")) >= 5, 60)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [lost["worker"] for lost in ingest.events("worker.lost")] == ["s1"]
    joined = ingest.events("worker.joined")[-1]["worker"]
    assert joined.startswith("s")
    program: dict[str, Any] = {}
    exec(TRAIN, program)  # the package's own source
    torch.set_num_threads(1)
    alone, _ = run_local(run.launch.spec, program["train"], tmp_path)
    assert outcome["result"]["weights_sha256"] == alone.digest
    run.leave_nothing()


def test_a_recommender_sends_rows_through_servers_and_a_kill_costs_no_bit(
    cluster, home, ingest, package, tmp_path
):
    kinds = {"intra_node": "parameter_server", "inter_node": "parameter_server"}
    spec = {
        "workers": {"min": 1, "max": 2},
        "params": {"epochs": 20, "pause": 0.01},
        "sync": kinds | {"servers": 2},
        "function": "recommend",
    }
    run = start(cluster, home, ingest, package, "recommender", **spec)
    run.until_world(2)
    run.until_step(run.step() + 8)
    os.kill(run.pids()["w3"], signal.SIGKILL)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [lost["worker"] for lost in ingest.events("worker.lost")] == ["w3"]
    steps = ingest.stream("metrics")
    assert [m["step"] for m in steps] == list(range(1, 81))
    sent = [m["values"]["comm_bytes"] for m in steps]
    # Two partial sums of 40 touched rows and less, against 160 KB for the larger table alone.
    assert all(0 < nbytes < 10_000 for nbytes in sent)
    program: dict[str, Any] = {}
    exec(TRAIN, program)  # the package's own source
    torch.set_num_threads(1)
    alone, _ = run_local(run.launch.spec, program["recommend"], tmp_path)
    assert outcome["result"]["weights_sha256"] == alone.digest
    run.leave_nothing()


def test_a_worker_killed_in_a_round_of_local_sgd_costs_no_bit(cluster, home, ingest, package, tmp_path):
    sync = {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 4}
    spec = {"workers": {"min": 1, "max": 2}, "params": {"epochs": 40, "pause": 0.01}, "sync": sync}
    run = start(cluster, home, ingest, package, "rounds", **spec)
    run.until_world(2)
    run.until_step(run.step() + 8)
    before = run.pids()
    os.kill(before["w1"], signal.SIGKILL)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 161))
    (lost,) = ingest.events("worker.lost")
    assert (lost["worker"], lost["step"] % 4) == ("w1", 0)
    program: dict[str, Any] = {}
    exec(TRAIN, program)  # the package's own source
    torch.set_num_threads(1)
    alone, _ = run_local(run.launch.spec, program["train"], tmp_path)
    assert outcome["result"]["weights_sha256"] == alone.digest
    run.leave_nothing()


def test_a_token_ring_loses_a_worker_and_grows_and_shrinks_without_losing_a_row(
    cluster, home, ingest, package
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "tokens",
        workers={"min": 1, "max": 3},
        params={"epochs": 150, "pause": 0.01},
        sync="token_ring",
        debug={"ledger": True},
    )
    run.until_world(3)
    run.until_step(run.step() + 20)
    before = run.pids()
    os.kill(before["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w3"])
    run.until_step(run.step() + 20)
    cluster.resize("tokens", 1, 1, 2)
    run.until_world(2)
    outcome = run.outcome(120)
    assert outcome["outcome"] == "succeeded", outcome
    assert outcome["result"]["steps"] == 600
    assert outcome["result"]["samples"] == 150 * 64
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 601))
    assert [e["worker"] for e in ingest.events("worker.lost")] == ["w1"]
    joined = {e["worker"]: e["pid"] for e in ingest.events("worker.joined")}
    assert {w: joined[w] for w in ("w0", "w2")} == {w: before[w] for w in ("w0", "w2")}
    run.leave_nothing()


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
        params={"epochs": 60, "pause": 0.01},
        debug={"ledger": True},
        checkpoint={"every_steps": 40},
    )
    run.until_world(2)
    run.until_step(10)
    before = run.pids()
    for kill in (1, 2):
        cluster.fault("headless", 1, "supervisor", None, 1.0)
        wait_for(
            "a supervisor that is back", lambda n=kill: len(ingest.events("supervisor.returned")) == n, 60
        )
        run.until_step(run.step() + 10)
        assert run.pids() == before
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert [e["start"] for e in ingest.events("supervisor.returned")] == [2, 3]
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start"], "nobody had to park"
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 241))
    saved = [e["step"] for e in ingest.events("checkpoint.saved")]
    # Of those that were complete when it came back only the newest is made.
    assert saved == sorted(set(saved))
    assert saved[-1] == 240
    lines = [(r["worker"], r["line"]) for r in ingest.stream("logs")]
    assert [lines.count((w, text)) for w in before for text in (HELLO, "goodbye")] == [1, 1, 1, 1]
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
        params={"epochs": 80, "pause": 0.01},
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
        params={"epochs": 12, "pause": 0.005},
        debug={"ledger": True},
    )
    run.until_step(10)
    ingest.away = True  # it cannot get rid of the outcome
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
    ray.kill(ray.get_actor("job-orphaned-a1", namespace="ringleader"))
    wait_for("ended workers", lambda: not [p for p in pids.values() if alive(p)])
    wait_for("a supervisor less", lambda: not cluster.supervisors())
    with pytest.raises(RingleaderError, match="has had its supervisor"):
        cluster.start(run.launch)
    run.leave_nothing(orderly=False)


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
    wait_for("all three", lambda: {path.name for path in folder.iterdir()} >= joined, 60)
    assert {path.read_text() for path in folder.iterdir()} == {"a-5ecret-v4lue"[::-1]}
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if b"a-5ecret-v4lue" in path.read_bytes()] == []
    frozen = pid_of_actor("job-trusted-a1")
    asked = [("trusted", 1), ("trusted", 2)]
    assert cluster.answers(asked) == {("trusted", 1): True, ("trusted", 2): False}
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
        params={"epochs": 1000, "pause": 0.01},
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
    workers = {"min": 2, "max": 2}
    run = start(cluster, home, ingest, package, "taker", workers=workers, params={"epochs": 2000})
    run.until_world(2)
    taken = set(run.pids().values())
    cluster.cancel("taker", 1, 0.0)
    assert run.outcome()["outcome"] == "cancelled"
    run.leave_nothing()
    wait_for("a warm cluster again", warm, 90)
    assert not [pid for pid in taken if alive(pid)]


def pid_of_actor(name: str) -> int:
    """The process of a living actor, from the cluster's own table."""
    from ray._private.state import actors

    (found,) = [a for a in actors().values() if a["Name"] == name and a["State"] == "ALIVE"]
    return int(found["Pid"])
