"""Attempts on a real Ray cluster with real training: from start to outcome, through a kill, a resize, a cancel."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from integration.runtime_job import TRAIN, start, write_training
from pace import gates
from trace_file import check_nested, complete, inside, is_step, read, steps_of, workers
from waiting import wait_for

from ringleader.runtime.nodes.cluster import FaultMissed
from ringleader.runtime.nodes.node_scratch import copies_of
from ringleader.runtime.supervisor.failure_detector import BEAT_GONE_S
from ringleader.wire.package import pack


def printed(epochs: int) -> list[str]:
    """What the training function prints beside its loops."""
    return ["hello from the training function", *(f"epoch {n}" for n in range(epochs)), "goodbye"]


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
    assert [r["line"] for r in ingest.stream("logs")] == printed(epochs=5), "once, not by each worker"
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start"]
    run.leave_nothing()
    from ringleader.runtime.supervisor import attempt_registry  # it imports Ray

    attempt_registry.claim("plain-too", 1)
    assert attempt_registry.claimed("plain", 1)
    cluster.forget("plain")
    assert [attempt_registry.claimed(job, 1) for job in ("plain", "plain-too")] == [False, True]


def test_what_each_worker_has_of_its_own_is_no_difference(cluster, home, ingest, package):
    """The folder of the program, a temporary one, a clock, a device, and rows that were read."""
    settings = {"workers": {"min": 2, "max": 2}, "params": {"epochs": 3}}
    run = start(cluster, home, ingest, package, "own", function="beside_its_files", **settings)
    result = run.outcome()["result"]
    assert (result["reproducible"], result["reproducible_why"]) == (True, ""), result
    assert ingest.events("program.differs") == []
    run.leave_nothing()


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
        params={
            "epochs": 60,
            "pause": 0.01,
            "rows": str(tmp_path / "rows.parquet"),
            "gates": gates(tmp_path, 20, 120),
        },
        data={"distribution": "replicated"},
    )
    run.until_world(3)
    run.until_step(20)
    before = run.pids()
    assert len(list(copies_of(run.launch.scratch.name).glob("*/*.arrow"))) == 1
    wait_for("what became of the time", lambda: (ingest.status.get("spent") or {}).get("wall_s", 0.0) > 0.0)
    run.open_gate(20)  # at their pace they are without it before a replacement can be there
    os.kill(before["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w3"])
    run.open_gate(120)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert outcome["result"]["steps"] == 240
    joined = {e["worker"]: e["pid"] for e in ingest.events("worker.joined")}
    assert all(joined.values())
    assert {w: joined[w] for w in ("w0", "w2")} == {w: before[w] for w in ("w0", "w2")}
    (lost,) = ingest.events("worker.lost")
    assert (lost["worker"], lost["pid"], lost["cause"]) == ("w1", before["w1"], "died (SIGKILL)")
    (recovered,) = ingest.events("recovered")
    assert recovered["steps_lost"] == 0
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 241))
    assert [r["line"] for r in ingest.stream("logs")] == printed(epochs=60), "nor by who joins"
    assert [e["cause"] for e in ingest.events("generation.formed")][-2:] == ["lost", "join"]
    run.leave_nothing()


def traced_so_far(spool: Path, worker: str) -> list[dict[str, Any]]:
    """The steps of a worker in the trace of a running attempt."""
    if not (spool / "trace.head").exists():
        return []
    number = json.loads((spool / "trace.head").read_text())["workers"].get(worker)
    lines = (spool / "trace.raw").read_text().splitlines(keepends=True)
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if is_step(event) and event["pid"] == number]


def test_a_trace_holds_every_settled_step_once_through_a_kill(cluster, home, ingest, package, tmp_path):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "traced",
        workers={"min": 1, "max": 2},
        params={"epochs": 60, "pause": 0.01, "gates": gates(tmp_path, 20, 120)},
        debug={"trace": True},
    )
    run.until_world(2)
    run.until_step(21)
    wait_for("what w1 tells of a settled step", lambda: traced_so_far(run.launch.spool, "w1"))
    victim = run.pids()["w1"]
    run.open_gate(20)
    os.kill(victim, signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w2"])
    run.open_gate(120)
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


def test_a_stopped_worker_is_seen_and_lost_and_one_without_progress_is_told_and_then_lost(
    cluster, home, ingest, package, tmp_path
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "frozen",
        workers={"min": 1, "max": 2},
        policy={"stall_timeout_s": 8},
        params={"epochs": 5000, "pause": 0.01, "hang": str(tmp_path)},
    )
    run.until_world(2)
    run.until_step(run.step() + 5)
    assert "SIGSTOP" in cluster.fault("frozen", 1, "freeze", "w1", 1.0)
    (recovered,) = wait_for("recovery", lambda: ingest.events("recovered"))
    assert recovered["detect_s"] < BEAT_GONE_S, "somebody looked: it takes longer to miss its heartbeats"
    run.until_world(2)
    run.until_step(run.step() + 5)
    with pytest.raises(FaultMissed, match="w1"):  # a ghost cannot be harmed
        cluster.fault("frozen", 1, "kill", "w1", 1.0)
    slowed_at = run.step()
    cluster.fault("frozen", 1, "slow", "w2", 1.0)
    run.until_step(slowed_at + 20)
    told = len(ingest.events("worker.stalled"))  # on a busy machine a second passes easily
    (tmp_path / str(run.pids()["w0"])).touch()
    wait_for("another recovery", lambda: len(ingest.events("recovered")) == 2)
    stalled = [e for e in ingest.events("worker.stalled")[told:] if e["worker"] == "w0"]
    assert [(e["rank"], e["phase"]) for e in stalled] == [(0, "forward")]
    lost = ingest.events("worker.lost")
    assert [(e["worker"], e["rank"], e["cause"]) for e in lost] == [("w1", 1, "frozen"), ("w0", 0, "stalled")]
    assert lost[0]["phase"] in {"forward", "exchange", "update", "committed", "between"}
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


def test_a_module_is_found_where_pythonpath_of_the_job_file_says(cluster, home, ingest, tmp_path):
    (tmp_path / "work" / "src").mkdir(parents=True)
    write_training(tmp_path / "work" / "src" / "deeper")
    env, workers = {"PYTHONPATH": "nowhere:src/deeper"}, {"min": 1, "max": 1}
    package = pack(tmp_path / "work")
    run = start(cluster, home, ingest, package, "below", env=env, workers=workers, params={"epochs": 1})
    assert run.outcome()["outcome"] == "succeeded"
    run.leave_nothing()


def test_a_program_is_checked_beside_its_job_and_nothing_is_left_of_that(cluster, home, ingest, tmp_path):
    write_training(tmp_path / "work", f"{TRAIN}\n{BY_A_CLOCK}")
    workers, params = {"min": 1, "max": 1}, {"told": str(tmp_path / "told")}
    package = pack(tmp_path / "work")
    run = start(
        cluster,
        home,
        ingest,
        package,
        "clock",
        function="by_a_clock",
        workers=workers,
        params=params,
        debug={"check": True},
    )
    [told] = wait_for("what differs", lambda: ingest.events("program.differs"), 300)
    assert (told["variable"], told["beforehand"]) == ("optimizer.param_groups[0]['lr']", True)
    assert told["line"].startswith("tiny_training.py:")
    (tmp_path / "told").touch()
    result = run.outcome()["result"]
    assert (result["generations"], result["reproducible"]) == (1, False)
    lines = [record["line"] for record in ingest.stream("logs")]
    assert [line for line in lines if line == "hello"] == ["hello"]
    run.leave_nothing()


BY_A_CLOCK = """
def by_a_clock(session):
    print("hello")
    net = session.model(torch.nn.Linear(8, 1))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    while session.evaluate(Rows(), told_of(session))["told"] < 1:
        for batch in session.batches(Rows()):
            time.sleep(0.1)
            session.step((net(batch["x"]).squeeze(-1) - batch["y"]).square().mean())
        optimizer.param_groups[0]["lr"] = 0.01 + time.time() % 1 / 1000

def told_of(session):
    return lambda batch: {"told": torch.full_like(batch["y"], float(os.path.exists(session.params["told"])))}
"""


def test_training_goes_on_while_the_control_plane_is_away(cluster, home, ingest, package, tmp_path):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "alone",
        workers={"min": 1, "max": 1},
        params={"epochs": 12, "pause": 0.005, "gates": gates(tmp_path, 4)},
    )
    run.until_step(3)
    ingest.away = True
    run.open_gate(4)
    wait_for("finished weights", (run.launch.artifacts / "weights.safetensors").exists, 60)
    ingest.away = False
    assert run.outcome()["outcome"] == "succeeded"
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 49))
    run.leave_nothing()
