"""What one leased item is to the model: its update, its bound, its buffers, its metrics."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from leasing import (
    ASYNC,
    BACKUP,
    BATCH,
    DATA,
    LR,
    NET,
    ROWS,
    SHARDS,
    SSP,
    STEPS_AN_EPOCH,
    Counts,
    Numbers,
    Tally,
    job,
    learn,
    name_of,
)
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.state.buffers import CommittedBuffers


def test_clipping_by_several_ssp_servers_is_refused_by_name(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        learn(session, clip_norm=0.05)

    play = ThreadedCast(job(SSP | {"servers": 2}), train, artifacts=tmp_path).play()
    assert play.outcome == "failed"
    assert "clip_norm" in play.message


@pytest.mark.parametrize(
    ("mode", "refused"), [(SSP | {"servers": 2}, True), (ASYNC | {"servers": 2}, True), (SSP, False)]
)
def test_an_average_by_servers_that_hold_parts_is_refused_by_name(mode, refused, tmp_path: Path) -> None:
    """A server would average the newest weights of its own part with old ones of all others."""

    def train(session: Session) -> None:
        net = session.model(copy.deepcopy(NET))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
        ema = torch.optim.swa_utils.AveragedModel(net)
        session.keep("ema", ema)
        session.on_commit(lambda: ema.update_parameters(net))
        for x, y in session.batches(DATA):
            session.step(F.cross_entropy(net(x), y))

    play = ThreadedCast(job(mode), train, artifacts=tmp_path).play()
    assert play.outcome == ("failed" if refused else "succeeded"), (play.reason, play.message)
    assert not refused or "kept object 'ema'" in play.message


@pytest.mark.parametrize("servers", [1, 2])
def test_an_asynchronous_item_is_clipped_by_its_whole_norm(servers: int, tmp_path: Path) -> None:
    """One worker, so that one server's order is two servers' order; every gradient is far above the bound."""

    def train(session: Session) -> None:
        learn(session, clip_norm=0.05)

    def free(session: Session) -> None:
        learn(session)

    spec = job(ASYNC | {"servers": servers}, workers={"min": 1, "max": 1})
    clipped = ThreadedCast(spec, train, artifacts=tmp_path / "clipped").play()
    loose = ThreadedCast(spec, free, artifacts=tmp_path / "free").play()
    assert clipped.outcome == loose.outcome == "succeeded", clipped.message
    assert clipped.digest != loose.digest


UNEVEN = 18
"""Rows of a batch whose slices have 4, 5, 4, 5."""


def by_hand(weight: Callable[[Tensor], float] = len) -> nn.Module:
    """Items in their order, each an update at its share of the learning rate: of its rows and, where a weight is not
    the rows, of what a row weighs beside the mean row so far. Plain torch."""
    net = copy.deepcopy(NET)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5)
    x, y = DATA.tensors
    weights = seen = 0.0
    for start in range(0, len(x), UNEVEN):
        rows = min(UNEVEN, len(x) - start)
        for shard in range(SHARDS):
            low, high = start + shard * rows // SHARDS, start + (shard + 1) * rows // SHARDS
            if low == high:
                continue
            optimizer.zero_grad()
            F.cross_entropy(net(x[low:high]), y[low:high]).backward()
            weights, seen = weights + weight(y[low:high]), seen + high - low
            optimizer.param_groups[0]["lr"] = 0.125 * (weight(y[low:high]) / (weights / seen)) / rows
            optimizer.step()
    return net


def label_weight(y: Tensor) -> float:
    """Of a slice; one of rows that are all of class 0 counts little."""
    return float(y.sum()) + 0.5


@pytest.mark.parametrize("weight", [len, label_weight])
def test_alone_every_item_is_an_update_of_its_own(weight, tmp_path: Path) -> None:
    """Slices of 18 rows have 4, 5, 4, 5. An item's weight counts beside the mean so far: no later one is known."""
    nets: list[nn.Module] = []

    def train(session: Session) -> None:
        nets.append(session.model(copy.deepcopy(NET)))
        session.optimizer(torch.optim.SGD(nets[0].parameters(), lr=0.125, momentum=0.5))
        for x, y in session.batches(DATA, shuffle=False):
            session.step(F.cross_entropy(nets[0](x), y), weight=None if weight is len else weight(y))

    finished, sink = run_local(
        job(ASYNC, batch={"global_size": UNEVEN, "logical_shards": SHARDS}), train, tmp_path
    )
    assert finished.steps == 4
    assert sorted(sink.values) == [1, 2, 3, 4]
    assert sorted(row for _, rows in sink.rows.values() for row in rows.tolist()) == list(range(72))
    for ours, theirs in zip(nets[0].parameters(), by_hand(weight).parameters(), strict=True):
        # A share is rounded to a float64 on the way to its learning rate.
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", [SSP, SSP | {"servers": 2}, ASYNC, BACKUP], ids=name_of)
def test_no_slice_loses_what_another_did_to_the_buffers(mode, tmp_path: Path) -> None:
    """With ssp the straggler holds an item of the first clock until the first slices of the next two, which start from
    the same buffers, are computed."""
    nets: dict[str, Tally] = {}
    begun, enough = threading.Event(), threading.Event()
    seen: list[int] = []

    def train(session: Session) -> None:
        me = threading.current_thread().name
        net = nets[me] = session.model(Tally())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if me == "w2" and mode.get("staleness"):
                begun.set()
                assert enough.wait(30), f"the others made {len(seen)} items"
            assert not mode.get("staleness") or begun.wait(30), "the straggler got no item"
            seen.append(int(rows.min()))
            if len(seen) == 3 * SHARDS - 1:
                enough.set()
            session.step(net(rows).mean())

    play = ThreadedCast(job(mode), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    if mode.get("staleness"):
        assert max(values["staleness_max"] for _, values in play.values) == 2
    firsts = [row for start in range(0, ROWS - 2, BATCH) for row in range(start, start + BATCH // SHARDS)]
    expected = torch.zeros(ROWS, dtype=torch.float64)
    expected[firsts] = 1
    for name in play.finished:
        assert torch.equal(nets[name].seen, expected)
        assert (int(nets[name].turns), bool(nets[name].late)) == (STEPS_AN_EPOCH - 1, True)


def test_buffers_that_cannot_be_negative_do_not_become_so() -> None:
    """Two slices from one start take away more than there is left of a variance; a mean may go below zero."""
    norm = nn.BatchNorm1d(1)
    buffers = CommittedBuffers([norm])
    start = buffers.committed_bytes()
    lefts = []
    for _ in range(2):
        norm.running_var.fill_(0.25)  # type: ignore[union-attr]
        norm.running_mean.fill_(-0.5)  # type: ignore[union-attr]
        norm.num_batches_tracked.fill_(1)  # type: ignore[union-attr]
        buffers.keep_left()
        lefts.append(buffers.left_bytes())
        buffers.rewind()
    for left in lefts:
        assert left is not None
        buffers.follow(start, left)
    assert (float(norm.running_var), float(norm.running_mean)) == (0.0, -1.0)  # type: ignore[arg-type]
    assert int(norm.num_batches_tracked) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [ASYNC, SSP], ids=name_of)
@pytest.mark.parametrize("others", [{"second": 2.0}, {}], ids=["another", "none"])
def test_workers_that_give_different_metrics_are_both_named(mode, others, tmp_path: Path) -> None:
    """Both workers have an item in hand before either pushes one."""
    both = threading.Barrier(2, timeout=30)

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        mine = others if threading.current_thread().name == "w1" else {"first": 1.0}
        for turn, rows in enumerate(session.batches(Numbers(), shuffle=False)):
            if turn == 0:
                both.wait()
            session.step(net(rows).mean(), **mine)

    spec = job(mode, workers={"min": 2, "max": 2})
    play = ThreadedCast(spec, train, artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert (
        f"w1 gave session.step the metrics {list(others)}" in play.message
        or f"w1 {list(others)}" in play.message
    )
    assert "w2" in play.message
    assert "['first']" in play.message
    assert not [values for _, values in play.values if set(values) >= {"first", "second"}]
