"""Who leaves in peace, and attempts that end before their job: between two steps, with nothing lost."""

import os
import signal
import time

import pytest
from integration.one_process import assert_bits_of_one_process
from integration.ray_home import address, ray_node
from integration.runtime_job import start
from pace import gates
from waiting import wait_for

from ringleader.runtime.clouds import Notice
from ringleader.runtime.spot import drain

AWAY = "127.0.0.2"
"""Where the second node stands."""


@pytest.mark.timeout(300)
def test_workers_on_a_node_that_ray_drains_leave_it_at_a_boundary_and_cost_nothing(
    cluster, home, ingest, package, tmp_path
):
    spec = {
        "workers": {"min": 1, "max": 2, "cpus": 5},  # one on each node
        "params": {"epochs": 40, "pause": 0.01, "gates": gates(tmp_path, 60)},
        "debug": {"ledger": True},
    }
    with ray_node(AWAY, num_cpus=5) as node:
        wait_for("warm process there", lambda: cluster.warmed().get(node), 60)
        run = start(cluster, home, ingest, package, "away", **spec)
        run.until_world(2)
        run.until_step(run.step() + 5)
        (there,) = [w["id"] for w in ingest.status["workers"] if w["node"] == node]
        drain(address(), AWAY, Notice("preempted", time.time() + 30.0))
        (left,) = wait_for("departure", lambda: ingest.events("worker.left"))
        assert (left["worker"], left["cause"], left["why"]) == (there, "drain", "its node is drained")
        run.open_gate(60)
        outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert not ingest.events("worker.lost")
    assert not ingest.events("recovered")
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 161))
    assert_bits_of_one_process(run, outcome, tmp_path)
    run.leave_nothing()


@pytest.mark.timeout(300)
def test_attempts_that_lost_everybody_were_paused_or_preempted_are_followed_from_their_newest_checkpoint(
    cluster, home, ingest, package, tmp_path
):
    spec = {
        "workers": {"min": 2, "max": 2, "cpus": 4},  # there is no room for a replacement
        "params": {"epochs": 100, "pause": 0.01, "gates": gates(tmp_path, 15, 40, 200, 300)},
        "checkpoint": {"every_steps": 10, "every_s": None, "keep": 2},
        "debug": {"ledger": True},
    }
    first = start(cluster, home, ingest, package, "unlucky", **spec)
    wait_for("first checkpoint", lambda: ingest.events("checkpoint.saved"))
    first.open_gate(15)
    wait_for("second checkpoint", lambda: len(ingest.events("checkpoint.saved")) >= 2)
    first.until_step(35)
    for pid in first.pids().values():
        os.kill(pid, signal.SIGKILL)
    first.open_gate(40)
    outcome = first.outcome()
    assert (outcome["outcome"], outcome["reason"]["code"]) == ("failed", "min_workers_lost")
    saved = [event["step"] for event in ingest.events("checkpoint.saved")]
    # Steps of 10 ms: while one is being written others may be complete, and only the newest of them is made.
    assert saved[0] == 10
    assert saved == sorted(set(saved) & {10, 20, 30, 40, 50})
    first.leave_nothing()
    ingest.forget()
    second = start(cluster, home, ingest, package, "unlucky", attempt=2, **spec)
    second.until_step(saved[-1] + 13)
    cluster.pause("unlucky", 2, 60.0)
    assert second.outcome()["outcome"] == "paused"
    second.open_gate(200)
    (restored,) = ingest.events("checkpoint.restored", attempt=2)
    assert restored["step"] == saved[-1]
    paused_at = ingest.events("checkpoint.saved", attempt=2)[-1]["step"]
    assert paused_at == max(m["step"] for m in ingest.stream("metrics", attempt=2))
    second.leave_nothing()
    printed = [r["line"] for r in ingest.stream("logs", 2) if r["line"].startswith("epoch")]
    ingest.forget()
    third = start(cluster, home, ingest, package, "unlucky", attempt=3, **spec)
    third.until_step(paused_at + 5)
    cluster.drain("unlucky", 3, "w1", 12.0)
    outcome = third.outcome()
    third.open_gate(300)
    assert (outcome["outcome"], outcome["reason"]["code"]) == ("preempted", "preempted")
    assert "w1" in outcome["reason"]["message"]
    assert not ingest.events("worker.lost", attempt=3)
    preempted_at = ingest.events("checkpoint.saved", attempt=3)[-1]["step"]
    assert preempted_at == max(m["step"] for m in ingest.stream("metrics", attempt=3))
    third.leave_nothing()
    printed += [r["line"] for r in ingest.stream("logs", 3) if r["line"].startswith("epoch")]
    ingest.forget()
    fourth = start(cluster, home, ingest, package, "unlucky", attempt=4, **spec)
    outcome = fourth.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    (restored,) = ingest.events("checkpoint.restored", attempt=4)
    assert restored["step"] == preempted_at
    assert outcome["result"]["steps"] == 400
    printed += [r["line"] for r in ingest.stream("logs", 4) if r["line"].startswith("epoch")]
    first = (saved[-1] - 1) // 4
    assert printed == [f"epoch {n}" for n in range(first, 100)], "each once, whichever attempt runs it again"
    assert outcome["result"]["checkpoint_uri"].endswith("step-000000000400-a4-g1-end")
    folder = home / "checkpoints" / "unlucky"
    made = [event["uri"].rpartition("/")[2] for event in ingest.events("checkpoint.saved", attempt=4)]
    assert sorted(p.parent.name for p in folder.glob("*/manifest.json")) == made[-2:]
    # Between the two there may be files of one that was passed over, as above.
    assert min(p.name for p in folder.iterdir()) == made[-2]
    assert_bits_of_one_process(fourth, outcome, tmp_path)
    fourth.leave_nothing()


def test_a_worker_that_is_left_alone_below_the_minimum_saves_what_it_holds_before_it_is_killed_too(
    cluster, home, ingest, package, tmp_path
):
    spec = {
        "workers": {"min": 1, "max": 2, "cpus": 4},
        "params": {"epochs": 20, "pause": 0.01, "gates": gates(tmp_path, 15)},
        "checkpoint": {"every_steps": None, "every_s": 3600},
        "debug": {"ledger": True},
    }
    first = start(cluster, home, ingest, package, "deserted", **spec)
    first.until_step(15)
    cluster.resize("deserted", 1, 3, 3)  # there is no room for a third one
    pids = first.pids()
    os.kill(pids["w1"], signal.SIGKILL)
    (saved,) = wait_for("what is left", lambda: ingest.events("checkpoint.saved"))
    os.kill(pids["w0"], signal.SIGKILL)
    outcome = first.outcome()
    assert (outcome["outcome"], outcome["reason"]["code"]) == ("failed", "min_workers_lost")
    assert [e["cause"] for e in ingest.events("generation.formed")] == ["start", "short"]
    assert [(e["worker"], e["step"]) for e in ingest.events("worker.lost")] == [
        ("w1", saved["step"]),
        ("w0", saved["step"]),
    ]
    first.leave_nothing()
    ingest.forget()
    first.open_gate(15)
    second = start(cluster, home, ingest, package, "deserted", attempt=2, **spec)
    outcome = second.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    (restored,) = ingest.events("checkpoint.restored", attempt=2)
    assert restored["step"] == saved["step"] >= 15, "no step is lost"
    assert_bits_of_one_process(second, outcome, tmp_path)
    second.leave_nothing()


def test_sigterm_to_a_worker_lets_it_leave_at_a_boundary_and_costs_nothing(
    cluster, home, ingest, package, tmp_path
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "termed",
        workers={"min": 1, "max": 2},
        params={"epochs": 60, "pause": 0.01, "gates": gates(tmp_path, 120)},
    )
    run.until_world(2)
    run.until_step(run.step() + 5)
    os.kill(run.pids()["w1"], signal.SIGTERM)
    (left,) = wait_for("departure", lambda: ingest.events("worker.left"))
    assert (left["worker"], left["cause"], left["why"]) == ("w1", "drain", "SIGTERM")
    run.open_gate(120)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert not ingest.events("worker.lost")
    assert not ingest.events("recovered")
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 241))
    run.leave_nothing()
