"""Workers of a node and who joins them: one of them reads a set of files to find its blocks, and all others have its
index."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cast import Cast
from counted_files import SCHEME, count_files, openers, settle
from faults import FaultPlan
from test_group_faults import STEPS, job, register, run_epochs

from ringleader.data import FileDataset, JsonlSource, ParquetDataset
from ringleader.train import Session

FILES, ROWS = 4, 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    here = tmp_path / "files"
    here.mkdir()
    for number in range(FILES):
        pq.write_table(pa.table({"n": list(range(ROWS))}), here / f"{number}.parquet", row_group_size=7)
        (here / f"{number}.jsonl").write_text("\n".join('{"n": 1}' for _ in range(ROWS)))
    settle(here)
    return here


def train(session: Session) -> None:
    """Opens the files, and reads no row of them: who opened one has looked for its blocks."""
    count_files()
    place = str(session.params["place"])
    rows = [len(ParquetDataset(place)), len(FileDataset(JsonlSource(place)))]
    assert rows == [FILES * ROWS] * 2
    run_epochs(session, register(session))


def test_of_a_nodes_workers_and_joiners_one_reads_each_file(folder: Path, tmp_path: Path) -> None:
    cues = FaultPlan().kill("w1", at_step=3).hold("w0", at_step=8, for_generation=3)
    spec = job(params={"place": f"{SCHEME}{folder}"})
    play = Cast(spec, train, cues, tmp_path / "artifacts").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert (play.worlds, set(play.finished)) == ([3, 2, 3], {"w0", "w2", "w3"})
    assert {file.name: len(openers(file)) for file in folder.iterdir() if file.suffix != ".opened"} == {
        f"{number}.{kind}": 1 for number in range(FILES) for kind in ("parquet", "jsonl")
    }
    assert max(step for step, _, _ in play.settled_rows()) == STEPS
