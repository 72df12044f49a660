"""Leased items on real processes, and on a real cluster: kills and resizes lose and repeat no row."""

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from cast import Cast
from faults import ANY, FaultPlan
from integration.runtime_job import start
from integration.test_group_faults import EPOCHS, ROWS, STEPS, job, train
from pace import gates
from play import Play
from waiting import wait_for

from ringleader.train.local import run_local

SERVERS = {"intra_node": "parameter_server", "inter_node": "parameter_server"}
ASYNC = SERVERS | {"consistency": "async"}
TWO = ASYNC | {"servers": 2}
SSP = SERVERS | {"consistency": "ssp", "staleness": 1}
STRICT = SERVERS | {"consistency": "ssp"}
BACKUP = SERVERS | {"backup_workers": 1}


def check(play: Play) -> None:
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert len({f.digest for f in play.finished.values()}) == 1
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert sorted(row for _, _, row in play.settled_rows()) == sorted(list(range(ROWS)) * EPOCHS)
    assert {step for step, values in play.values if "accuracy" in values} == {5, 10, 15}


@pytest.mark.parametrize("sync", [ASYNC, TWO, SSP, BACKUP], ids=["async", "two", "ssp", "backup"])
def test_a_killed_process_costs_no_row_and_repeats_none(sync: dict[str, Any], tmp_path: Path) -> None:
    victim = f"w{sync.get('servers', 1)}"
    faults = FaultPlan().kill(victim, at_step=ANY, phase="backward", past=3)
    play = Cast(job(sync=sync), train, faults, tmp_path).play()
    check(play)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


def test_processes_have_the_bits_of_one_where_nothing_may_be_stale(tmp_path: Path) -> None:
    """Dropout, BatchNorm, clipping, momentum, a schedule; killed once."""
    torch.set_num_threads(1)
    alone, _ = run_local(job(), train, tmp_path / "alone")
    faults = FaultPlan().kill("w1", at_step=ANY, phase="backward", past=2)
    play = Cast(job(sync=STRICT), train, faults, tmp_path / "cast").play()
    check(play)
    assert play.digest == alone.digest


@pytest.mark.parametrize("sync", [ASYNC, STRICT], ids=["async", "ssp"])
def test_a_killed_server_process_with_a_backup_costs_no_row_and_repeats_none(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    """Its replacement comes while the others go on; where nothing may be stale the bits are those of one process."""
    torch.set_num_threads(1)
    faults = FaultPlan().kill("s0", at_step=6, phase="committed")
    play = Cast(job(sync=sync | {"server_backups": 1}), train, faults, tmp_path / "cast").play()
    check(play)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == ["s0"]
    if sync is STRICT:
        assert play.digest == run_local(job(), train, tmp_path / "alone")[0].digest


def test_on_a_cluster_a_kill_and_a_resize_lose_and_repeat_no_row(
    cluster, home, ingest, package, tmp_path
) -> None:
    run = start(
        cluster,
        home,
        ingest,
        package,
        "leased",
        workers={"min": 1, "max": 2},
        sync=ASYNC,
        params={"epochs": 60, "pause": 0.01, "gates": gates(tmp_path, 60, 150)},
        debug={"ledger": True},
    )
    run.until_world(2)
    run.until_step(run.step() + 10)
    os.kill(run.pids()["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w3"])
    run.open_gate(60)
    run.until_world(2)
    run.until_step(run.step() + 10)
    cluster.resize("leased", 1, 1, 1)
    run.until_world(1)
    run.open_gate(150)
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    assert outcome["result"]["steps"] == 240
    assert [e["worker"] for e in ingest.events("worker.lost")] == ["w1"]
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 241))
    ledger = pq.read_table(outcome["result"]["ledger_uri"].removeprefix("file://"))
    assert sorted(ledger["row"].to_pylist()) == sorted(list(range(64)) * 60)
    run.leave_nothing()
