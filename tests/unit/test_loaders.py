"""Processes that load live on over loops and generations, and load what the program's datasets are at each loop."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import is_alive
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from waiting import wait_for

from ringleader import Session
from ringleader.train.local import run_local
from ringleader.train.rows.dataset_likeness import likeness
from ringleader.train.rows.loader_processes import KEPT, LoaderProcesses
from ringleader.train.rows.slices import Slice

torch.set_num_threads(1)
GUARD_S = 60
ROWS = 16
SPEC: dict[str, Any] = {
    "name": "unit",
    "entrypoint": "unit:train",
    "workers": {"max": 2},
    "batch": {"global_size": 8},
}
SCALE = {"now": 1.0}


class Who(Dataset[Tensor]):
    """Rows that say in which process they were loaded."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Tensor:
        return torch.tensor([os.getpid(), row])


class Scaled(Dataset[Tensor]):
    """Rows of a value that a program changes, and of all else that it may come from."""

    factor = 1.0

    def __init__(self) -> None:
        self.level = 1.0
        self.table = np.ones(ROWS)
        self.tensor = torch.ones(ROWS)
        self.nested = {"a": [1.0, object]}
        self.net = nn.Linear(1, 1)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Tensor:
        value = (
            self.level * self.table[row] * self.tensor[row] * self.nested["a"][0] * self.factor * SCALE["now"]
        )
        return torch.as_tensor(value, dtype=torch.float32).reshape(1)


@torch.no_grad()
def harder(data: Scaled, what: str) -> None:
    match what:
        case "attribute":
            data.level *= 3
        case "array":
            data.table[3:] *= 3
        case "tensor through an array":
            data.tensor.numpy()[3:] *= 3
        case "list":
            data.nested["a"][0] *= 3
        case "class":
            Scaled.factor *= 3
        case "global":
            SCALE["now"] *= 3


def pieces(*rows: int) -> Iterator[Slice]:
    return (Slice(("step", row, 0), 0, np.array([row])) for row in rows)


def learn(session: Session, data: Any, loaders: int, change: Callable[[], None] = lambda: None) -> set[int]:
    """Two loops and two evaluations; returns who loaded, where rows say so."""
    net = session.model(nn.Linear(1, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1e-3))
    seen: set[int] = set()
    for _ in range(3):
        for batch in session.batches(data, loader_workers=loaders):
            seen |= set(batch[:, 0].long().tolist())
            session.step(net(batch[:, :1] / 1e6).square().mean())
        change()
    return seen


def children() -> set[int]:
    return {child.pid for child in torch.multiprocessing.active_children() if child.pid is not None}


def test_processes_that_load_live_on_over_loops(tmp_path: Path) -> None:
    seen: set[int] = set()
    run_local(SPEC, lambda session: seen.update(learn(session, Who(), 2)), tmp_path)
    assert len(seen) == 2
    assert os.getpid() not in seen
    assert not seen & children(), "they end with the session"


@pytest.mark.parametrize("what", ["attribute", "array", "tensor through an array", "list", "class", "global"])
def test_what_a_program_changes_in_its_data_between_loops_reaches_them(what: str, tmp_path: Path) -> None:
    digests = []
    for loaders in (0, 2):
        data, Scaled.factor, SCALE["now"] = Scaled(), 1.0, 1.0
        train = partial(learn, data=data, loaders=loaders, change=partial(harder, data, what))
        finished, _ = run_local(
            SPEC, lambda session, train=train: void(train(session)), tmp_path / str(loaders)
        )
        digests.append(finished.digest)
    assert digests[0] == digests[1]


def test_evaluations_behind_steps_load_what_their_data_is_at_each(tmp_path: Path) -> None:
    def train(session: Session, loaders: int) -> None:
        net = session.model(nn.Linear(1, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        weighed = lambda rows: torch.stack(rows) * net.weight.detach().reshape(())  # noqa: E731
        data = Scaled()
        for step in session.steps(data):
            for batch in step:
                session.step(net(batch).square().mean())
            score = session.evaluate(
                data, lambda x: {"mean": x[:, 0]}, collate=weighed, loader_workers=loaders
            )
            scores[loaders].append(score["mean"])

    scores: dict[int, list[float]] = {0: [], 1: []}
    for loaders in scores:
        run_local(SPEC, partial(train, loaders=loaders), tmp_path / str(loaders))
    assert len(set(scores[0])) == 2
    assert scores[0] == scores[1]


def adding(value: int) -> Callable[[Any], Any]:
    return lambda rows: rows[0][0] + value


def void(_: object) -> None:
    """A training function returns nothing."""


def test_a_collate_that_goes_by_a_local_variable_is_seen_to_change() -> None:
    loaders, data = LoaderProcesses(0), TensorDataset(torch.arange(4.0))
    for call in range(3):
        batches = loaders.load(call, data, pieces(0, 1), adding(call), 1)
        assert [float(batch) for batch in batches] == [0.0 + call, 1.0 + call]
    loaders.close()


class Gated(Who):
    """Its second row comes once the gate is open; `loads` counts by row."""

    def __init__(self) -> None:
        self.loads = torch.zeros(ROWS, dtype=torch.int64).share_memory_()
        self.gate = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __getitem__(self, row: int) -> Tensor:
        if row == 1:
            wait_for("gate", lambda: int(self.gate))
        self.loads[row] += 1
        return super().__getitem__(row)


def test_a_broken_generations_slices_are_dropped_and_not_loaded_any_more() -> None:
    loaders, data = LoaderProcesses(0), Gated()
    before = loaders.load(7, data, pieces(*range(ROWS)), None, 1)
    assert int(next(before)[0][1]) == 0
    (process_set,) = loaders._process_sets

    def open_the_gate() -> None:
        """Once the next run has begun: rows 2 and 3 of the first one are asked for, and nothing has come of that."""
        wait_for("next run", lambda: int(process_set._newest) == 2)
        data.gate.fill_(1)

    opener = threading.Thread(target=open_the_gate)
    opener.start()
    again = loaders.load(7, data, pieces(*range(ROWS)), None, 1)
    opener.join()
    rows = [batch[0].tolist() for batch in again]
    assert [row for _, row in rows] == list(range(ROWS))
    assert len({pid for pid, _ in rows}) == 1
    assert data.loads[:4].tolist() == [2, 2, 1, 1]
    assert list(before) == [], "who asks for more of what is over gets nothing"
    loaders.close()


AFTER_A_DEATH = """
import os, signal, threading, numpy, torch
from torch.multiprocessing import active_children
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.slices import Slice

rows, loaders = torch.utils.data.TensorDataset(torch.arange(4)), LoaderProcesses(0)

def load(call):
    piece = Slice(("step", 0, 0), 0, numpy.arange(4))
    print([batch[0].tolist() for batch in loaders.load(call, rows, iter([piece]), None, 1)], flush=True)

def train():  # as a worker does, in a thread: in the first one torch raises wherever that stands
    load(0)
    (child,) = active_children()
    child.kill()
    child.join()
    load(1)

training = threading.Thread(target=train)
training.start()
training.join()
"""


def test_a_process_that_has_died_since_the_last_loop_is_replaced() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AFTER_A_DEATH], capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    assert done.stdout.split("\n") == ["[[0, 1, 2, 3]]"] * 2 + [""], done.stderr


def test_there_are_no_more_than_so_many_processes() -> None:
    loaders, before = LoaderProcesses(0), children()
    for call in range(KEPT + 3):
        data = TensorDataset(torch.full((2,), call))
        assert [int(batch[0]) for batch in loaders.load(call, data, pieces(0, 1), None, 1)] == [call] * 2
    assert len(children() - before) == KEPT
    loaders.close()
    assert children() == before


def test_idle_processes_end_with_a_worker_that_is_killed() -> None:
    program = """
import numpy, os, signal, sys, torch
from ringleader.train.rows.loader_processes import LoaderProcesses
from ringleader.train.rows.slices import Slice
rows = torch.utils.data.TensorDataset(torch.arange(4))
loaders = LoaderProcesses(0)
print([b[0].tolist() for b in loaders.load(0, rows, iter([Slice(("step", 0, 0), 0, numpy.arange(4))]), None, 2)])
print(*(child.pid for child in torch.multiprocessing.active_children()), flush=True)
sys.stdin.read()
"""
    worker = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "[[0, 1, 2, 3]]\n"
    loading = [int(pid) for pid in worker.stdout.readline().split()]
    assert len(loading) == 2
    worker.kill()
    worker.communicate(timeout=GUARD_S)
    wait_for("their end", lambda: not any(is_alive(pid) for pid in loading))


class Locked:
    """Holds what cannot be read."""

    def __init__(self) -> None:
        self.waits = iter([1, 2])


def plus(rows: list[Any], by: float = 1.0) -> Any:
    return rows[0] + by


def closure(value: Any) -> Any:
    return lambda rows: (rows, value)


@pytest.mark.parametrize(
    "one",
    [
        Scaled(),
        TensorDataset(torch.ones(3, 4)),
        np.arange(100_000.0),
        ["a.png", ("b.png", 1)] * 50_000,
        closure({"deep": [1]}),
        partial(plus, by=2.0),
        nn.Sequential(nn.Linear(2, 2)),
    ],
)
def test_what_nobody_has_changed_looks_the_same(one: Any) -> None:
    assert likeness(one) is not None
    assert likeness(one, None) == likeness(one, None)
    assert likeness(one, None) != likeness(one, plus)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closure([1]), closure([2])),
        (partial(plus, by=1.0), partial(plus, by=2.0)),
        (closure(np.zeros(20_000)), closure(np.eye(1, 20_000, 19_999)[0])),
        (closure(torch.zeros(3)), closure(torch.zeros(3, dtype=torch.float64))),
        ((lambda rows: rows[0]), (lambda rows: rows[-1])),
        ({"a": object}, {"a": int}),
    ],
)
def test_what_differs_looks_different(one: Any, other: Any) -> None:
    assert likeness(one) is not None
    assert likeness(one) != likeness(other)


def test_of_what_cannot_be_read_nothing_is_said() -> None:
    assert likeness(Locked()) is None
    assert likeness([object() for _ in range(30_000)]) is None


def test_a_setting_in_an_installed_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDataset(torch.ones(2))
    before = likeness(data)
    monkeypatch.setattr(TensorDataset, "level", 1, raising=False)
    assert before not in (None, likeness(data))
    monkeypatch.undo()
    assert likeness(data) == before
