"""Files of the program that do not stay, or that every worker writes: said once, with path, line and cure."""

import csv
import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults import FaultPlan
from play import Play
from test_leaving import COPIES, RING, ROUNDS, SERVERS, job, made, rows
from threaded_cast import ThreadedCast
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import RecordedOutput, SingleMember
from ringleader.train.run import run

torch.set_num_threads(1)
MODES = {"ring": RING, "servers": SERVERS, "copies": COPIES, "local_sgd": ROUNDS}
Writes = Callable[[Session, Path], object]


def by_open(_: Session, place: Path) -> None:
    with open(place / "log.csv", "a") as file:  # noqa: PTH123 - as programs do
        csv.writer(file).writerow([1, 2])


def by_dump(_: Session, place: Path) -> None:
    with (place / "scores.json").open("w") as file:
        json.dump({"score": 1}, file)


WRITES: dict[str, Writes] = {
    "open": by_open,
    "json": by_dump,
    "path": lambda _, place: (place / "note.txt").write_text("best"),
    "numpy": lambda _, place: np.save(place / "rows.npy", np.zeros(3)),
    "torch": lambda _, place: torch.save({"w": torch.zeros(3)}, place / "best.pt"),
    "torch under another name": lambda _, place: torch.serialization.save({}, str(place / "best.pt")),
}


def guarded(session: Session, place: Path) -> None:
    if session.is_main:
        by_open(session, place)


def in_a_temporary_folder(*_: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.save({}, Path(folder) / "best.pt")
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("x")


HARMLESS: dict[str, Writes] = {
    "guarded": guarded,
    "temporary": in_a_temporary_folder,
    "of its own": lambda _, place: (place / f"log-{threading.get_ident()}.txt").write_text("x"),
    "nowhere": lambda *_: Path(os.devnull).write_text("x"),
    "read": lambda *_: Path(__file__).read_text(),
    "a lock": lambda _, place: (place / "rows.lock").write_text(""),
}


def programs(write: Writes, place: Path) -> dict[str, Callable[[Session], None]]:
    def between_loops(session: Session) -> None:
        net, data = made(session), rows()
        for _ in range(3):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))
            write(session, place)

    def behind_steps(session: Session) -> None:
        net, data = made(session), rows()
        for step in session.steps(data):
            for x, y in step:
                session.step(F.cross_entropy(net(x), y))
            write(session, place)

    def on_commit(session: Session) -> None:
        net, data = made(session), rows()
        session.on_commit(lambda: write(session, place) and None)
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y))

    return {"between loops": between_loops, "behind steps": behind_steps, "on commit": on_commit}


def told(play: Play) -> list[dict[str, Any]]:
    return [data for data in play.reported("warning") if data["about"] == "file"]


def played(program: Callable[[Session], None], sync: Any, faults: FaultPlan, place: Path) -> Play:
    play = ThreadedCast(job(sync, workers={"min": 2, "max": 3}), program, faults, place / "cast").play()
    assert play.outcome == "succeeded", play.message
    return play


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_every_worker_writes_is_said_once(name: str, tmp_path: Path) -> None:
    program = programs(WRITES[name], tmp_path)["between loops"]
    (warning,) = told(played(program, RING, FaultPlan(), tmp_path))
    assert warning["message"].startswith(f"every worker writes {tmp_path}/")
    assert "(test_written_files.py:" in warning["message"]
    assert "if session.is_main:" in warning["hint"]
    assert "session.save(name, object)" in warning["hint"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["between loops", "behind steps", "on commit"])
def test_it_is_said_wherever_all_workers_write_it_and_whoever_is_lost(
    where: str, mode: str, tmp_path: Path
) -> None:
    lost = "w1" if mode in ("ring", "local_sgd") else "w2"
    program = programs(by_open, tmp_path)[where]
    play = played(program, MODES[mode], FaultPlan().kill(lost, at_step=4), tmp_path)
    assert [each["message"].partition(" (")[0] for each in told(play)] == [
        f"every worker writes {tmp_path}/log.csv"
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HARMLESS)
def test_a_file_of_one_worker_is_not_said(name: str, mode: str, tmp_path: Path) -> None:
    for where, program in programs(HARMLESS[name], tmp_path).items():
        play = played(program, MODES[mode], FaultPlan(), tmp_path / where)
        assert told(play) == []
        assert {end.reproducible_why for end in play.finished.values()} == {""}


def alone(write: Writes, place: Path, where: str = "between loops") -> list[dict[str, Any]]:
    """What is said of files where a worker has a working directory of its own."""
    sink, spec = RecordedOutput(), job(RING, workers={"min": 1, "max": 1})
    run(
        spec=spec,
        function=programs(write, place)[where],
        coordinator=SingleMember(spec.shards),
        sink=sink,
        server=False,
        artifacts=place / "artifacts",
        workspace=place / "work",
    )
    return [data for kind, data in sink.events if kind == "warning" and data["about"] == "file"]


def test_a_file_that_goes_away_with_the_worker_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def guarded_save(session: Session, _: Path) -> None:
        if session.is_main:
            torch.save({}, "best.pt")

    (warning,) = alone(guarded_save, tmp_path)
    assert warning["message"].startswith("best.pt (test_written_files.py:")
    assert "working directory, which is removed when the worker ends" in warning["message"]
    assert "session.save(name, object)" in warning["hint"]


def test_a_file_that_the_program_removes_itself_or_that_stays_is_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def removed(*_: object) -> None:
        Path("part.txt").write_text("x")
        Path("part.txt").unlink()

    assert alone(removed, tmp_path) == []
    assert alone(by_open, tmp_path) == []
