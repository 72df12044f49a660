"""Rows shuffled by blocks: joined, killed, paused and resumed at any world size, each row counts once, with the bits of
one process."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cast import Cast
from faults import FaultPlan
from test_group_faults import EPOCHS, ROWS, STEPS, TWO, register, rows
from test_group_restart import LEASED, MODES, SAVED, job, rows_of
from torch.nn import functional as F

from ringleader.data import ParquetDataset
from ringleader.train import Session
from ringleader.train.local import run_local

FILES, GROUP = 3, 7
WORLDS = (1, 2, 3)
WORKERS = ("w0", "w1", "w2", "w3", "w4", "w5")
NEVER = 1000
DATA = {"order": "block", "window_blocks": 2}
CACHE_BYTES = 1000
"""Of 4,200 bytes of rows: blocks are read again."""


def train(session: Session) -> None:
    data = ParquetDataset(session.params["path"], cache_bytes=CACHE_BYTES)
    net = register(session)
    for _ in range(EPOCHS):
        for batch in session.batches(data, loader_workers=session.params.get("loader_workers", 0)):
            session.step(F.cross_entropy(net(batch["x"]), batch["y"]))
        session.evaluate(data, lambda b: {"accuracy": (net(b["x"]).argmax(dim=1) == b["y"]).float()})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("source")
    x, y = rows().tensors
    for part in range(FILES):
        mine = slice(part * ROWS // FILES, (part + 1) * ROWS // FILES)
        columns = {"x": pa.array(x[mine].tolist(), pa.list_(pa.float32(), 6)), "y": y[mine].tolist()}
        pq.write_table(pa.table(columns), folder / f"{part}.parquet", row_group_size=GROUP)
    return folder


def spec(source: Path, most: int, *, least: int = 1, **changes: Any) -> Any:
    keys: dict[str, Any] = {"params": {"path": str(source)}, "data": DATA, "checkpoint": {"every_steps": 4}}
    return job(**(keys | {"workers": {"min": least, "max": most}} | changes))


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    finished, output = run_local(spec(source, 1), train, tmp_path_factory.mktemp("alone"))
    settled = [int(row) for _, rows in output.rows.values() for row in rows]
    assert sorted(settled) == sorted(list(range(ROWS)) * EPOCHS)
    return finished.digest


@pytest.mark.parametrize("sync", ["ring", TWO], ids=["ring", "two-servers"])
@pytest.mark.parametrize("world", WORLDS)
def test_each_row_is_settled_once_through_a_join_a_kill_a_pause_and_another_world(
    world: int, sync: Any, source: Path, undisturbed: str, tmp_path: Path
) -> None:
    servers = ("s0", "s1") if sync is TWO else ()
    first_worker = len(servers)
    workers = [f"w{first_worker + n}" for n in range(world + 1)]
    cues = FaultPlan().resize(at_step=3, workers_min=1, workers_max=world + 1).pause(at_step=9)
    for name in workers[:world]:
        cues = cues.linger(name, since_step=3, for_generation=2)
    cues = cues.kill(workers[-1], at_step=6)
    for name in WORKERS:
        cues = cues.dawdle(name, from_step=9, for_generation=NEVER)
    checkpoints = str(tmp_path / SAVED)
    keys = {"sync": sync}
    began = spec(source, world, **keys)
    first = Cast(began, train, cues, tmp_path / "first", checkpoints=checkpoints).play()
    assert (first.outcome, first.finished) == ("paused", {}), (first.reason, first.message)
    assert (first.worlds[0], max(first.worlds)) == (world, world + 1)
    assert len(first.plans) > 2
    other = spec(source, 4 - world, **keys)
    second = Cast(other, train, FaultPlan(), tmp_path / "second", attempt=2, checkpoints=checkpoints).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert rows_of(first, second) == sorted(list(range(ROWS)) * EPOCHS)
    assert max(step for step, _ in second.values) == STEPS
    assert second.digest == undisturbed


@pytest.mark.parametrize("mode", ["rounds", "copies", "async", "ssp", "backup", "tokens"])
def test_in_every_mode_an_epoch_by_blocks_settles_each_row_once(
    mode: str, source: Path, tmp_path: Path
) -> None:
    keys = MODES[mode] if mode in MODES else {"sync": LEASED[mode]}
    job_file = spec(source, 2, least=2, **keys)
    play = Cast(job_file, train, FaultPlan(), tmp_path / "together").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert sorted(row for _, _, row in play.settled_rows()) == sorted(list(range(ROWS)) * EPOCHS)
    if mode in MODES:
        assert play.digest == run_local(job_file, train, tmp_path / "alone")[0].digest


def test_processes_that_load_change_no_bit(source: Path, undisturbed: str, tmp_path: Path) -> None:
    params = {"path": str(source), "loader_workers": 2}
    assert run_local(spec(source, 1, params=params), train, tmp_path)[0].digest == undisturbed


def test_the_order_is_part_of_the_result(source: Path, undisturbed: str, tmp_path: Path) -> None:
    digests = {
        order: run_local(spec(source, 1, data={"order": order}), train, tmp_path / order)[0].digest
        for order in ("auto", "shuffled", "row", "block")
    }
    assert digests.pop("auto") == digests["block"]
    assert len({*digests.values(), undisturbed}) == 4
