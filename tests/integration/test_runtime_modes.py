"""Attempts on a real Ray cluster that are no ring: servers, rounds, tokens; killed, and equal in their bits."""

import os
import signal
from typing import Any

import pytest
import torch
from integration.runtime_job import TRAIN, start
from pace import gates
from waiting import wait_for

from ringleader.train.local import run_local


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
    params = {"epochs": 60, "pause": 0.01, "gates": gates(tmp_path, 120)}
    spec = {"workers": {"min": 2, "max": 2}, "params": params, "sync": sync}
    run = start(cluster, home, ingest, package, name, **spec)
    run.until_world(2)
    run.until_step(run.step() + 3)
    before = run.pids()
    assert str(before["s1"]) in cluster.fault(name, 1, "server", "s1", 1.0)
    wait_for("replacement", lambda: len(ingest.events("worker.joined")) >= 5, 60)
    run.open_gate(120)
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
        "params": {"epochs": 20, "pause": 0.01, "gates": gates(tmp_path, 40)},
        "sync": kinds | {"servers": 2},
        "function": "recommend",
    }
    run = start(cluster, home, ingest, package, "recommender", **spec)
    run.until_world(2)
    run.until_step(run.step() + 8)
    os.kill(run.pids()["w3"], signal.SIGKILL)
    run.open_gate(40)
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
    params = {"epochs": 40, "pause": 0.01, "gates": gates(tmp_path, 80)}
    spec = {"workers": {"min": 1, "max": 2}, "params": params, "sync": sync}
    run = start(cluster, home, ingest, package, "rounds", **spec)
    run.until_world(2)
    run.until_step(run.step() + 8)
    before = run.pids()
    os.kill(before["w1"], signal.SIGKILL)
    run.open_gate(80)
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
    cluster, home, ingest, package, tmp_path
):
    run = start(
        cluster,
        home,
        ingest,
        package,
        "tokens",
        workers={"min": 1, "max": 3},
        params={"epochs": 150, "pause": 0.01, "gates": gates(tmp_path, 150, 300)},
        sync="token_ring",
        debug={"ledger": True},
    )
    run.until_world(3)
    run.until_step(run.step() + 20)
    before = run.pids()
    os.kill(before["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w3"])
    run.open_gate(150)
    run.until_world(3)
    run.until_step(run.step() + 20)
    cluster.resize("tokens", 1, 1, 2)
    run.until_world(2)
    run.open_gate(300)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert outcome["result"]["steps"] == 600
    assert outcome["result"]["samples"] == 150 * 64
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 601))
    assert [e["worker"] for e in ingest.events("worker.lost")] == ["w1"]
    joined = {e["worker"]: e["pid"] for e in ingest.events("worker.joined")}
    assert {w: joined[w] for w in ("w0", "w2")} == {w: before[w] for w in ("w0", "w2")}
    run.leave_nothing()
