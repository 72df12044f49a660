"""The global batch grows and shrinks at committed steps: every row once, the same bits, whatever happens to members."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults import FaultPlan
from hypothesis import given
from hypothesis import strategies as st
from play import Play
from threaded_cast import ThreadedCast
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.errors import SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.batch import Batch
from ringleader.train import Session
from ringleader.train.local import local_session, run_local
from ringleader.train.rows.order.batch_sizes import batch_at, steps_ahead, steps_in_epoch
from ringleader.train.rows.order.cursor import Epoch

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
ROWS, EPOCHS, SHARDS = 72, 3, 4
FIRST, SCHEDULE = 8, [[3, 16], [6, 24], [8, 5]]
SIZES = [8, 8, 8, 16, 16, 16] + [24, 24] + [5] * 100
"""By committed steps; the last batch of an epoch has what is left."""
SERVERS = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
LOCAL = {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 4}


def expected() -> list[list[int]]:
    """The number of rows of every step, epoch by epoch, by hand."""
    epochs, step = [], 0
    for _ in range(EPOCHS):
        left, sizes = ROWS, []
        while left:
            sizes.append(min(left, SIZES[step]))
            left, step = left - sizes[-1], step + 1
        epochs.append(sizes)
    return epochs


STEPS = sum(map(len, expected()))


def job(**changes: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "growing",
        "entrypoint": "growing:train",
        "workers": {"min": 1, "max": 2},
        "batch": {"global_size": FIRST, "schedule": SCHEDULE, "logical_shards": SHARDS},
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


def drawn() -> tuple[nn.Module, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    return net, TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


NET, DATA = drawn()
"""Copied by every member: the generator that draws weights is shared by all threads."""


def train(session: Session) -> None:
    net = session.model(copy.deepcopy(NET))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    steps = session.total_steps(DATA, epochs=EPOCHS)
    session.scheduler(torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps))
    for _ in range(EPOCHS):
        for x, y in session.batches(DATA):
            session.step(F.cross_entropy(net(x), y), planned=float(session.global_batch))
        session.evaluate(DATA, lambda batch: {"hit": (net(batch[0]).argmax(1) == batch[1]).float()})


# --- which rows -----------------------------------------------------------------------------------------------------


CHANGES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 60)), max_size=4, unique_by=lambda one: one[0]
)


@given(rows=st.integers(0, 300), batch=st.integers(1, 60), changes=CHANGES.map(sorted), drop=st.booleans())
def test_every_batch_begins_where_the_one_before_ends(
    rows: int, batch: int, changes: list[tuple[int, int]], drop: bool
) -> None:
    start, offset, sizes = 0, 0, []
    while start < rows:
        size = ([size for at, size in changes if at <= offset] or [batch])[-1]
        assert batch_at(offset, batch, changes) == (start, size)
        if drop and start + size > rows:
            break
        sizes.append(min(size, rows - start))
        start, offset = start + size, offset + 1
    assert steps_in_epoch(rows, batch, drop_last=drop, changes=changes) == len(sizes)
    order = {"rows": rows, "batch": batch, "shards": 3, "seed": 1, "epoch": 2, "shuffle": True}
    epoch = Epoch.shuffled(**order, drop_last=drop, changes=changes)
    assert [epoch.batch_rows(offset) for offset in range(epoch.steps)] == sizes
    taken = [epoch.rows(offset, shard) for offset in range(epoch.steps) for shard in range(3)]
    plain = Epoch.shuffled(**order)
    assert np.array_equal(np.concatenate([*taken, plain.order[:0]]), plain.order[: sum(sizes)])


def test_sizes_and_changes_follow_from_the_committed_step() -> None:
    batch = Batch.model_validate({"global_size": FIRST, "schedule": SCHEDULE})
    assert [batch.size_at(step) for step in range(20)] == SIZES[:20]
    assert batch.changes_behind(0) == ((3, 16), (6, 24), (8, 5))
    assert batch.changes_behind(6) == ((2, 5),)
    assert Batch().size_at(10**9) == Batch().global_size


def test_the_steps_of_several_passes_follow_the_schedule() -> None:
    batch = Batch.model_validate({"global_size": FIRST, "schedule": SCHEDULE})
    assert steps_ahead(batch, 0, ROWS, EPOCHS) == STEPS
    whole = steps_ahead(batch, 0, ROWS, 1) + steps_ahead(batch, len(expected()[0]), ROWS, EPOCHS - 1)
    assert whole == STEPS
    assert steps_ahead(Batch(global_size=10), 5, 39, 4, drop_last=True) == 12


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "pointer", "allowed"),
    [
        ({"schedule": [[5, 128], [5, 256]]}, "/batch/schedule/1", "steps in ascending order, each once"),
        ({"schedule": [[5, 128], [4, 256]]}, "/batch/schedule/1", "steps in ascending order, each once"),
        ({"schedule": [[5, 0]]}, "/batch/schedule/0/1", "greater than or equal to 1"),
        ({"schedule": [[0, 64]]}, "/batch/schedule/0/0", "greater than or equal to 1"),
        ({"schedule": [[5, 64.5]]}, "/batch/schedule/0/1", "integer"),
        ({"schedule": [[5]]}, "/batch/schedule", "[[1000, 256], [5000, 512]]"),
        ({"schedule": [5, 64]}, "/batch/schedule", "[[1000, 256], [5000, 512]]"),
        ({"schedule": {"5": 64}}, "/batch/schedule", "the step and the rows of a batch from it on"),
        (
            {"schedule": [{"step": 5, "rows": 64}]},
            "/batch/schedule",
            "the step and the rows of a batch from it on",
        ),
        ({"schedule": "linear"}, "/batch/schedule", "the step and the rows of a batch from it on"),
        (
            {"schedule": [[9, 3]], "logical_shards": 4},
            "/batch/schedule/0",
            "at least one row for every shard",
        ),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(batch: dict[str, Any], pointer: str, allowed: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        job(batch=batch)
    (finding,) = refused.value.errors
    assert finding["pointer"] == pointer
    assert allowed in finding["allowed"] or allowed in finding["message"], finding


@pytest.mark.parametrize(
    ("sync", "why"),
    [
        (SERVERS | {"consistency": "async"}, "every item is an update"),
        (SERVERS | {"backup_workers": 1}, "the items that come first"),
        ("token_ring", "workers are at different steps"),
        ({"inter_node": "token_ring", "intra_node": "ring"}, "workers are at different steps"),
        ({"inter_node": "parameter_server", "intra_node": "token_ring"}, "workers are at different steps"),
    ],
)
def test_a_schedule_is_refused_where_a_step_s_rows_depend_on_who_comes_first(sync: Any, why: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        job(sync=sync)
    (finding,) = refused.value.errors
    assert finding["pointer"] == "/batch/schedule"
    assert why in finding["message"]


# --- in one process, and in many ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of one process that computes every shard itself."""
    place = tmp_path_factory.mktemp("alone")
    return {way: run_local(job(**WAYS[way]), train, place)[0].digest for way in ("ring", "local_sgd")}


WAYS: dict[str, dict[str, Any]] = {
    "ring": {},
    "free ring": {"sync": {"reproducible": False}},
    "server": {"sync": SERVERS},
    "two servers": {"sync": SERVERS | {"servers": 2}},
    "copies": {"sync": {"inter_node": "ring", "intra_node": "parameter_server", "servers": 2}},
    "ssp": {"sync": SERVERS | {"consistency": "ssp"}},
    "stale": {"sync": SERVERS | {"consistency": "ssp", "staleness": 2}},
    "local_sgd": {"sync": LOCAL},
}


def check(play: Play, way: str, alone: dict[str, str]) -> None:
    """The promises that hold whatever happened."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    if job(**WAYS[way]).sync.same_bits:
        assert play.digest == alone["local_sgd" if way == "local_sgd" else "ring"]
    check_rows([(step, row) for step, _, row in play.settled_rows()])
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    if way not in ("local_sgd", "stale"):  # their bodies run before the step before is committed
        assert [values["planned"] for _, values in play.values] == SIZES[:STEPS]


def check_rows(settled: list[tuple[int, int]]) -> None:
    """Every step has as many rows as the schedule says, and every epoch has each row once."""
    step = 0
    for sizes in expected():
        steps = range(step + 1, step + len(sizes) + 1)
        assert [sum(at == number for at, _ in settled) for number in steps] == sizes
        assert sorted(row for at, row in settled if at in steps) == list(range(ROWS))
        step += len(sizes)


def test_a_local_session_grows_its_batches() -> None:
    with local_session(job()) as session:
        train(session)
        assert session.global_step == STEPS
    with local_session(job()) as session:
        assert session.total_steps(DATA, epochs=EPOCHS) == STEPS
        assert session.global_batch == FIRST


def test_the_batches_are_those_of_a_loop_by_hand() -> None:
    """One process, one shard: plain torch on the rows of the ledger, step by step."""
    spec = job(workers={"max": 1}, batch={"global_size": FIRST, "schedule": SCHEDULE, "logical_shards": 1})
    seen: list[torch.Tensor] = []

    def by_session(session: Session) -> None:
        net = session.model(copy.deepcopy(NET).eval())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(EPOCHS):
            for x, y in session.batches(DATA):
                session.step(F.cross_entropy(net(x), y))
        seen.extend(p.detach().clone() for p in net.parameters())

    _, told = run_local(spec, by_session, Path())
    net = copy.deepcopy(NET).eval()
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = DATA.tensors
    for _, rows in (told.rows[step] for step in sorted(told.rows)):
        plain.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        plain.step()
    assert [len(told.rows[step][1]) for step in sorted(told.rows)] == [s for e in expected() for s in e]
    for mine, theirs in zip(seen, net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("way", WAYS)
def test_batches_grow_in_every_mode_that_has_steps(way: str, alone: dict[str, str], tmp_path: Path) -> None:
    check(ThreadedCast(job(**WAYS[way]), train, artifacts=tmp_path).play(), way, alone)


@pytest.mark.parametrize("at", [2, 3, 6])
@pytest.mark.parametrize(("way", "lost"), [("ring", "w1"), ("two servers", "w3")])
def test_a_worker_lost_around_a_change_costs_no_bit_and_no_row(
    way: str, lost: str, at: int, alone: dict[str, str], tmp_path: Path
) -> None:
    faults = FaultPlan().kill(lost, at_step=at, phase="exchange")
    play = ThreadedCast(job(**WAYS[way]), train, faults, tmp_path).play()
    assert [loss["worker"] for loss in play.reported("worker.lost")] == [lost]
    check(play, way, alone)


def test_a_replica_lost_in_a_round_that_changes_size_costs_no_bit(
    alone: dict[str, str], tmp_path: Path
) -> None:
    faults = FaultPlan().kill("w1", at_step=4, phase="forward", past=1)
    play = ThreadedCast(job(**WAYS["local_sgd"]), train, faults, tmp_path).play()
    assert [loss["worker"] for loss in play.reported("worker.lost")] == ["w1"]
    check(play, "local_sgd", alone)


def test_who_joins_behind_a_change_takes_batches_of_the_new_size(
    alone: dict[str, str], tmp_path: Path
) -> None:
    faults = (
        FaultPlan()
        .resize(at_step=2, workers_min=4, workers_max=4)
        .hold("w0", at_step=3, for_generation=2)
        .resize(at_step=6, workers_min=2, workers_max=2)
        .hold("w0", at_step=7, for_generation=3)
    )
    play = ThreadedCast(job(workers={"min": 1, "max": 1}), train, faults, tmp_path).play()
    assert play.worlds == [1, 4, 2]
    check(play, "ring", alone)


@pytest.mark.parametrize("way", ["ring", "two servers", "local_sgd"])
@pytest.mark.parametrize("paused", [True, False], ids=["paused", "restarted"])
def test_a_later_attempt_goes_on_with_the_size_that_is_due(
    way: str, paused: bool, alone: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "saved"
    spec = job(checkpoint={"every_steps": 4}, **WAYS[way])
    faults = FaultPlan()
    if paused:
        faults = faults.pause(at_step=8)
        for worker in ("w0", "w1", "w2", "w3"):
            faults = faults.linger(worker, since_step=8, for_generation=2)
    for worker in () if paused else ("w0", "w1", "w2", "w3"):
        faults = faults.kill(worker, at_step=9, once=place, later=True)
    for server in () if paused else ("s0", "s1"):
        faults = faults.kill(server, at_step=9, phase="exchange", once=place)
    first = ThreadedCast(spec, train, faults, tmp_path / "1", checkpoints=str(place)).play()
    assert first.outcome == ("paused" if paused else "failed"), (first.outcome, first.message)
    wider = job(checkpoint={"every_steps": 4}, workers={"min": 3, "max": 3}, **WAYS[way])
    second = ThreadedCast(wider, train, artifacts=tmp_path / "2", attempt=2, checkpoints=str(place)).play()
    (restored,) = [data["step"] for data in second.reported("checkpoint.restored")]
    assert second.digest == alone["local_sgd" if way == "local_sgd" else "ring"]
    before = {(step, row) for step, _, row in first.settled_rows() if step <= restored}
    # What was committed, but not settled, the next attempt lets out once more: it has to be the same.
    check_rows([*before | {(step, row) for step, _, row in second.settled_rows()}])


def test_without_a_schedule_nothing_changes(tmp_path: Path) -> None:
    """A schedule that repeats the size has the bits of none."""
    batch = {"global_size": FIRST, "logical_shards": SHARDS}
    plain, told = run_local(job(batch=batch), in_order, tmp_path)
    same, also = run_local(job(batch=batch | {"schedule": [[3, FIRST], [20, FIRST]]}), in_order, tmp_path)
    assert plain.digest == same.digest
    for step, (_, rows) in told.rows.items():
        assert np.array_equal(rows, also.rows[step][1])


def in_order(session: Session) -> None:
    net = session.model(copy.deepcopy(NET))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(2):
        for x, y in session.batches(DATA, drop_last=True):
            session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize(
    ("data", "why"),
    [({"order": "block"}, "cuts files"), ({"skip": [[2, 3]]}, "numbers steps")],
)
def test_what_goes_by_batches_of_one_size_refuses_a_schedule(data: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        job(data=data)
    (finding,) = refused.value.errors
    assert (finding["pointer"], why in finding["message"]) == ("/batch/schedule", True), finding
