"""A loss inside a round of local SGD: what survivors have finished is not trained again, whoever it belongs to then."""

import copy
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from threaded_cast import ThreadedCast, ThreadPrompter
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
SHARDS, BATCH, INNER, ROUNDS = 6, 12, 2, 3
ROWS = BATCH * INNER * ROUNDS
PER_SHARD = BATCH // SHARDS


def job(**changes: Any) -> JobSpec:
    sync = {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": INNER, "outer": "nesterov"}
    base = {
        "name": "rounds",
        "entrypoint": "rounds:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
        "sync": sync,
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


class Points(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Rows with their numbers."""

    def __init__(self) -> None:
        self.x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.tensor(row), self.x[row], (self.x[row].sum() > 0).long()


with torch.random.fork_rng():
    torch.manual_seed(3)
    NET = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


class Training:
    """Adam, clipping, a schedule, BatchNorm; writes down who computed which slice.

    Args:
        victim: waits in its first turn of the second round until the others have finished all that they own.
    """

    def __init__(self, victim: str = "") -> None:
        self.turns: list[tuple[str, int, int]] = []
        self.finished = threading.Event()
        self._victim = victim

    def __call__(self, session: Session) -> None:
        net = session.model(copy.deepcopy(NET))
        optimizer = session.optimizer(torch.optim.Adam(net.parameters(), lr=0.05), clip_norm=0.5)
        session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7))
        me = threading.current_thread().name
        for rows, x, y in session.batches(Points(), shuffle=False):
            offset, place = divmod(int(rows.min()), BATCH)
            self.turns.append((me, offset, place // PER_SHARD))
            if me == self._victim and offset >= INNER:
                assert self.finished.wait(30), "the others did not come to the end of their round"
            session.step(F.cross_entropy(net(x), y))

    def counts(self) -> Counter[tuple[int, int]]:
        """How often each slice was computed. Whoever is started for a lost one and comes when the loop is over has one
        turn on the first rows, which counts for nothing; the first three were there from the first row on."""
        first = {"w0", "w1", "w2"}
        return Counter((offset, shard) for me, offset, shard in self.turns if offset or me in first)


def watch(training: Training, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """`finished` is set when so many members exchange the second round."""
    progress, waiting = ThreadPrompter.progress, set()

    def note(prompter: ThreadPrompter, **news: Any) -> None:
        progress(prompter, **news)
        if (news["phase"], news["step"]) == ("exchange", INNER):
            waiting.add(threading.current_thread().name)
            if len(waiting) == others:
                training.finished.set()

    monkeypatch.setattr(ThreadPrompter, "progress", note)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_local(job(), Training(), tmp_path_factory.mktemp("alone"))[0].digest


@pytest.mark.parametrize(("victim", "lost"), [("w0", {0, 1}), ("w1", {2, 3}), ("w2", {4, 5})])
def test_only_the_replicas_of_the_lost_worker_are_trained_again(
    undisturbed: str, victim: str, lost: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its second turn of the round, when the others have finished theirs. Of three workers with six shards
    two are left: each then owns a shard that was another's."""
    training = Training(victim)
    watch(training, monkeypatch, others=2)
    faults = FaultPlan().kill(victim, at_step=INNER, phase="forward", past=1)
    play = ThreadedCast(job(), training, faults, tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [data["worker"] for data in play.reported("worker.lost")] == [victim]
    assert play.digest == undisturbed
    counts = training.counts()
    again = {slice_: count for slice_, count in counts.items() if count > 1}
    assert again == {(INNER, min(lost)): 2}  # the one turn that the victim had made
    assert len(counts) == SHARDS * INNER * ROUNDS
    assert [step for step, _ in play.values] == list(range(1, INNER * ROUNDS + 1))
    assert sorted(row for _, _, row in play.settled_rows()) == list(range(ROWS))


def test_replicas_outlive_a_second_loss_in_the_same_round(
    undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one dies as it parks: what it had finished is trained again, the third one's is not."""
    training = Training("w0")
    watch(training, monkeypatch, others=2)
    faults = (
        FaultPlan()
        .kill("w0", at_step=INNER, phase="forward", past=1)
        .kill("w2", at_step=INNER, phase="parked")
    )
    play = ThreadedCast(job(), training, faults, tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == undisturbed
    counts = training.counts()
    again = {slice_ for slice_, count in counts.items() if count > 1}
    assert again == {(INNER, 0), *((INNER + k, shard) for k in range(INNER) for shard in (4, 5))}


def test_what_is_finished_of_an_older_round_is_not_taken_for_the_next(
    undisturbed: str, tmp_path: Path
) -> None:
    """Somebody dies right after a round is committed: survivors that stood before it take it over whole."""
    for step in (INNER, 2 * INNER):
        faults = FaultPlan().kill("w1", at_step=step, phase="committed")
        play = ThreadedCast(job(), Training(), faults, tmp_path).play()
        assert play.outcome == "succeeded", (play.reason, play.message)
        assert play.digest == undisturbed
