"""Each kind of files, a mix and packed documents: joined, killed, paused and resumed at another world, each position
counts once, with the bits of one process."""

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from cast import Cast
from faults import FaultPlan
from test_group_restart import SAVED, job, rows_of
from torch import nn

from ringleader.data import (
    ArrowSource,
    FileDataset,
    JsonlSource,
    MdsSource,
    Mix,
    Packed,
    WebDatasetSource,
)
from ringleader.train import Session
from ringleader.train.local import run_local

ROWS, EPOCHS = 90, 2
WORKERS = ("w0", "w1", "w2", "w3", "w4")
NEVER = 1000
NUMBERS = list(range(ROWS))


def arrow(folder: Path) -> FileDataset:
    return FileDataset(ArrowSource(folder / "a.arrow"))


def jsonl(folder: Path) -> FileDataset:
    return FileDataset(JsonlSource(folder / "a.jsonl", block_lines=7))


def webdataset(folder: Path) -> FileDataset:
    return FileDataset(WebDatasetSource(folder / "a.tar", block_samples=7), columns=["index"])


def mds(folder: Path) -> FileDataset:
    return FileDataset(MdsSource(folder, block_samples=7))


def mix(folder: Path) -> Mix:
    return Mix({"jsonl": (jsonl(folder), 2), "tar": (webdataset(folder), 1)})


def packed(folder: Path) -> Packed:
    return Packed(ArrowSource(folder / "documents.arrow"), 3)


KINDS: dict[str, Callable[[Path], Any]] = {
    each.__name__: each for each in (arrow, jsonl, webdataset, mds, mix, packed)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    here = tmp_path_factory.mktemp("files")
    documents = [list(range(n, n + n % 5)) for n in range(ROWS)]
    for name, column in {"a": {"index": NUMBERS}, "documents": {"input_ids": documents}}.items():
        table = pa.table(column)
        with pa.ipc.new_file(here / f"{name}.arrow", table.schema) as out:
            out.write_table(table, max_chunksize=7)
    (here / "a.jsonl").write_text("\n".join(json.dumps({"index": n}) for n in NUMBERS))
    with tarfile.open(here / "a.tar", "w") as tar:
        for n in NUMBERS:
            info = tarfile.TarInfo(f"{n}.index")
            info.size = len(str(n))
            tar.addfile(info, io.BytesIO(str(n).encode()))
    values = np.array(NUMBERS, "<i8").tobytes()
    places = 4 + 4 * (ROWS + 1) + 8 * np.arange(ROWS + 1)
    shard = np.array([ROWS, *places], "<u4").tobytes() + values
    (here / "0.mds").write_bytes(shard)
    about = {"column_names": ["index"], "column_encodings": ["int"], "column_sizes": [8], "samples": ROWS}
    told = {
        "version": 2,
        "format": "mds",
        "raw_data": {"basename": "0.mds", "bytes": len(shard), "hashes": {}},
    }
    (here / "index.json").write_text(json.dumps({"shards": [about | told]}))
    return here


def train(session: Session) -> None:
    data = KINDS[session.params["kind"]](Path(session.params["folder"]))
    net = session.model(nn.Linear(1, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1e-5, momentum=0.9))
    for _ in range(EPOCHS):
        for batch in session.batches(data):
            (x, *_) = batch.values()
            session.step(net(x.float().reshape(len(x), -1).sum(dim=1, keepdim=True)).square().mean())


@pytest.mark.parametrize("kind", KINDS)
def test_each_position_is_settled_once_with_the_bits_of_one_process(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    order = "shuffled" if kind == "mix" else "block"
    keys: dict[str, Any] = {
        "params": {"kind": kind, "folder": str(folder)},
        "data": {"order": order} | ({"window_blocks": 2} if order == "block" else {}),
        "batch": {"global_size": 10, "logical_shards": 4},
        "checkpoint": {"every_steps": 3},
    }
    rows = len(KINDS[kind](folder))
    undisturbed, output = run_local(job(workers={"min": 1, "max": 1}, **keys), train, tmp_path / "alone")
    assert sorted(int(row) for _, each in output.rows.values() for row in each) == sorted(
        [*range(rows)] * EPOCHS
    )
    cues = FaultPlan().resize(at_step=2, workers_min=1, workers_max=3).pause(at_step=7)
    cues = cues.linger("w0", since_step=2, for_generation=2).linger("w1", since_step=2, for_generation=2)
    cues = cues.kill("w2", at_step=4)
    for name in WORKERS:
        cues = cues.dawdle(name, from_step=7, for_generation=NEVER)
    checkpoints = str(tmp_path / SAVED)
    two, one = ({"workers": {"min": 1, "max": most}} for most in (2, 1))
    first = Cast(job(**keys, **two), train, cues, tmp_path / "first", checkpoints=checkpoints).play()
    assert (first.outcome, first.finished) == ("paused", {}), (first.reason, first.message)
    assert len(first.plans) > 2
    again = Cast(
        job(**keys, **one), train, FaultPlan(), tmp_path / "second", attempt=2, checkpoints=checkpoints
    )
    second = again.play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert rows_of(first, second) == sorted([*range(rows)] * EPOCHS)
    assert second.digest == undisturbed.digest


def spoilt(session: Session) -> None:
    """The file changes once, when the first step is over; nothing of it is kept in memory."""
    kind, folder, spoil = (session.params[name] for name in ("kind", "folder", "spoil"))
    source = (
        WebDatasetSource(f"{folder}/a.tar", block_samples=7)
        if kind == "webdataset"
        else MdsSource(folder, block_samples=7)
    )
    data = FileDataset(source, columns=["index"], cache_bytes=1)
    net = session.model(nn.Linear(1, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1e-5, momentum=0.9))
    for _ in range(EPOCHS):
        for batch in session.batches(data):
            session.step(net(batch["index"].float()[:, None]).square().mean())
            if session.global_step >= 4 and Path(spoil).exists():
                Path(spoil).rename(Path(folder, FILES[kind]))


FILES = {"webdataset": "a.tar", "mds": "0.mds"}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_changes_while_it_is_read_ends_the_job_by_name_and_nothing_is_lost(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "files"
    shutil.copytree(folder, mine)
    spoil = tmp_path / "spoil"
    keys: dict[str, Any] = {
        "params": {"kind": kind, "folder": str(mine), "spoil": str(spoil)},
        "data": {"order": "block", "window_blocks": 1},
        "batch": {"global_size": 10, "logical_shards": 2},
        "checkpoint": {"every_steps": 1},
        "workers": {"min": 2, "max": 2},
    }
    undisturbed, _ = run_local(job(**keys), spoilt, tmp_path / "alone")
    path = mine / FILES[kind]
    whole = path.read_bytes()
    spoil.write_bytes(whole[:-1100])
    checkpoints = str(tmp_path / SAVED)
    first = Cast(job(**keys), spoilt, FaultPlan(), tmp_path / "first", checkpoints=checkpoints).play()
    assert (first.outcome, first.reason) == ("failed", "entrypoint_raised"), first.message
    assert re.search(
        rf"{path}, samples \d+ to \d+ cannot be read: it has changed since it was first read", first.message
    )
    path.write_bytes(whole)
    again = Cast(job(**keys), spoilt, FaultPlan(), tmp_path / "second", attempt=2, checkpoints=checkpoints)
    second = again.play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert rows_of(first, second) == sorted([*range(ROWS)] * EPOCHS)
    assert second.digest == undisturbed.digest
