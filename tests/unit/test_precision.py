"""16-bit precision: the loop body and score functions run under autocast, and nothing else does."""

import copy
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loss_scale import BATCH, DATA, EPOCHS, NET, SERVERS, STEPS, STEPS_AN_EPOCH, job
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.train import Session
from ringleader.train.local import local_session, run_local
from ringleader_jobs.digits import Digits

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def casts() -> torch.dtype | None:
    """What a product of matrices is made in, on this thread."""
    dtype = (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    assert torch.is_autocast_enabled("cpu") == (dtype is not torch.float32)
    return dtype


class Watched(TensorDataset):
    """Sees in what its rows are loaded."""

    def __init__(self) -> None:
        super().__init__(*DATA.tensors)
        self.seen: set[torch.dtype | None] = set()

    def __getitem__(self, row: int) -> Any:
        self.seen.add(casts())
        return super().__getitem__(row)

    __getitems__ = None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_loop_body_and_scores_are_cast_and_nothing_else(precision: str) -> None:
    full, narrow = torch.float32, NARROW.get(precision, torch.float32)
    data, outside, inside = Watched(), [], []

    def score(batch: Any) -> dict[str, Tensor]:
        inside.append(casts())
        return {"one": net(batch[0])[:, 0] * 0 + 1}

    with local_session(job(precision)) as session:
        net = session.model(copy.deepcopy(NET))
        net[0].weight.register_hook(lambda _: outside.append(casts()))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        optimizer.register_step_pre_hook(lambda *_: outside.append(casts()))
        session.on_commit(lambda: outside.append(casts()))
        for x, y, _ in session.batches(data):
            inside.append(casts())
            session.step(F.cross_entropy(net(x), y))
            outside.append(casts())
        outside.append(casts())
        assert session.evaluate(data, score) == {"one": 1.0}
        outside.append(casts())
        assert {p.dtype for p in net.parameters()} == {full}
        assert {p.grad for p in net.parameters()} == {None}  # between calls, everywhere
    assert (set(inside), set(outside), data.seen) == ({narrow}, {full}, {full})


def left(session: Session, data: Watched, how: str) -> None:
    """A loop over the data that ends early."""
    net = session.model(copy.deepcopy(NET))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for x, y, _ in session.batches(data):
        if how == "raise":
            raise KeyError
        if how == "break":
            break
        if how == "stop":
            session.stop()
        if how == "its own":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                session.step(F.cross_entropy(net(x), y))
            continue
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("how", ["raise", "break", "stop", "its own"])
def test_however_a_loop_is_left_autocast_is_off_behind_it(how: str) -> None:
    data = Watched()
    with local_session(job()) as session:
        with suppress(KeyError):
            left(session, data, how)
        assert casts() is torch.float32
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16  # torch's default
    assert data.seen == {torch.float32}


def test_an_iterator_that_is_kept_is_left_with_the_session() -> None:
    kept: list[Iterator[Any]] = []
    with local_session(job()) as session:
        net = session.model(copy.deepcopy(NET))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        kept.append(session.batches(DATA))
        next(kept[0])
        assert casts() is torch.float16
    assert casts() is torch.float32


def test_other_threads_are_not_cast() -> None:
    seen: list[torch.dtype | None] = []
    with local_session(job()) as session:
        net = session.model(copy.deepcopy(NET))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y, _ in session.batches(DATA):
            thread = threading.Thread(target=lambda: seen.append(casts()))
            thread.start()
            thread.join()
            session.step(F.cross_entropy(net(x), y))
    assert seen == [torch.float32] * STEPS_AN_EPOCH * 4


def test_a_loss_in_16_bits_costs_the_first_step_where_65536_does_not_fit_in() -> None:
    with local_session(job(workers={"max": 1}, batch={"global_size": BATCH})) as session:
        net = session.model(nn.Linear(6, 1))
        seen = [net.weight.detach().clone()]
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.01))
        session.on_commit(lambda: seen.append(net.weight.detach().clone()))
        for x, *_ in session.batches(DATA):
            loss = net(x).pow(2).mean()
            assert loss.dtype is torch.float16
            session.step(loss)
    changed = [not torch.equal(*pair) for pair in pairwise(seen)]
    assert changed == [False, True, True, True, True]


# --- other ways -------------------------------------------------------------------------------------------------------

OTHER_WAYS: dict[str, dict[str, Any]] = {
    "local_sgd": {"inter_node": "local_sgd", "intra_node": "local_sgd", "inner_steps": 2},
    "token_ring": {"inter_node": "token_ring", "intra_node": "token_ring"},
    "ssp": SERVERS | {"consistency": "ssp", "staleness": 1},
    "async": SERVERS | {"consistency": "async"},
    "first come": SERVERS | {"backup_workers": 1},
    "int8": {"codec": "int8"},
}


def plain(session: Session) -> None:
    net = session.model(copy.deepcopy(NET))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    seen = set()
    for _ in range(EPOCHS):
        for x, y, _ in session.batches(DATA):
            seen.add(casts())
            session.step(F.cross_entropy(net(x), y))
        seen.add(casts())
    assert seen == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_bf16_trains_in_every_way(way: str, tmp_path: Path) -> None:
    play = ThreadedCast(job("bf16", sync=OTHER_WAYS[way]), plain, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert "loss_scale" not in play.values[0][1]


class Pixels(Digits):
    """The digits, read a slice at a time."""

    def __getitems__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        return self.image[rows], self.label[rows]


def digits(session: Session) -> None:
    rows, epochs = Pixels(train=True), 5
    net = session.model(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    total = session.total_steps(rows, epochs=epochs)
    session.scheduler(torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total))
    for _ in range(epochs):
        for image, label in session.batches(rows, collate=tuple):
            session.step(F.cross_entropy(net(image), label))
    session.evaluate(
        Pixels(train=False), lambda b: {"accuracy": (net(b[0]).argmax(1) == b[1]).float()}, collate=tuple
    )


def test_16_bits_learn_digits_like_32(tmp_path: Path) -> None:
    accuracy = {}
    for precision in ("fp32", "bf16", "fp16"):
        spec = job(precision, batch={"global_size": 64}, workers={"max": 1}, debug={})
        accuracy[precision] = run_local(spec, digits, tmp_path)[0].scores["accuracy"]
    assert accuracy["fp32"] > 0.9
    for precision in NARROW:  # a point: rows of the test set that stand at the border of two digits
        assert accuracy[precision] > accuracy["fp32"] - 0.01
