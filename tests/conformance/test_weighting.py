"""In every mode a step moves the weights by the gradient of one process on the concatenated batch, weighted by rows."""

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from play import Play
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.bench.training.modes import MODES, ModeCase
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.modes.local_sgd.outer_step import OUTER
from ringleader.train.rows.order.batch_sizes import shard_span

torch.set_num_threads(1)
WORKERS, SHARDS = 4, 6
NODES = {"s0": 0, "s1": 1} | {f"w{number}": number % 2 for number in range(8)}
LABELS = ((0, 1, 2, 0, 1), (0, 0, 1, 0, 1, 2, 0, 1, 1), (0, 0, 1, 1, 0, 2, 1, 1))
"""Of the rows of one batch after the other, each in a loop of its own, at whose end all members have equal weights.
Slices of 9 rows have 1, 2, 1, 2, 1, 2 of them, of 8 rows 1, 1, 2, 1, 1, 2; slices of one row have other labels than
those of two. Of 5 rows the first slice has none, nor its owner: that comes first, while nobody owes anything that would
have to wait (PowerSGD)."""

FEATURES, CLASSES, TALL, WIDE = 6, 3, 2048, 128
RATE = 1e-3
CLOSE = 0.02
"""Of a gradient's length. Moves of slices that are applied one after the other change the next one's gradient in the
second order of the learning rate: 0.2 % of it here. bf16 loses up to 2^-8 twice, the other codecs less."""
BY_ROWS = tuple((number, False) for number in range(len(LABELS)))
WEIGHTED = ((1, True), (2, True))
"""(batch, whether the user weights its rows): loops, one after the other."""


class Net(nn.Module):
    """Classes from zero weights, whose updates are floats of full precision; and a matrix that is large enough to be
    coded, with gradients that every codec can say: a few of its rows, each of one value."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Parameter(torch.zeros(CLASSES, FEATURES))
        self.bias = nn.Parameter(torch.zeros(CLASSES))
        self.table = nn.Parameter(torch.zeros(TALL, WIDE))

    def forward(self, x: Tensor, y: Tensor, place: Tensor) -> Tensor:
        """(rows,) the loss of each row."""
        picked = F.one_hot(place, TALL).to(x.dtype) @ self.table  # (rows, WIDE)
        losses = F.cross_entropy(x @ self.classes.T + self.bias, y, reduction="none")
        return losses + x[:, 0] * picked.sum(dim=1)


def batch_of(number: int) -> tuple[Tensor, ...]:
    """x, class, place in the table, weight of each row."""
    rows = len(LABELS[number])
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(rows, FEATURES, generator=generator)
    # Over all quarters of the table, which four members own: of each one value in 100 is what top-k sends.
    place = torch.arange(rows) % 4 * (TALL // 4) + torch.arange(rows)
    labels = torch.tensor(LABELS[number])
    return x, labels, place, torch.rand(rows, generator=generator) + 0.5 + 2 * labels


class Taught:
    """A training function that keeps what the weights are before, between and after its loops, for each member."""

    def __init__(self, loops: Sequence[tuple[int, bool]]) -> None:
        self.loops = loops
        self.seen: dict[str, list[dict[str, Tensor]]] = {}

    def __call__(self, session: Session) -> None:
        net = session.model(Net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=RATE))
        mine = self.seen[threading.current_thread().name] = [state_of(net)]
        for number, weighted in self.loops:
            for x, y, place, weight in session.batches(TensorDataset(*batch_of(number)), shuffle=False):
                losses = net(x, y, place)
                if weighted:
                    session.step((losses * weight).sum() / weight.sum(), weight=float(weight.sum()))
                else:
                    session.step(losses.mean())
            mine.append(state_of(net))


def state_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def gradient(
    state: dict[str, Tensor], number: int, *, weighted: bool, means: bool = False
) -> dict[str, Tensor]:
    """Plain torch: of the whole batch at once; `means`: what ignores how many rows a slice has."""
    net = Net()
    net.load_state_dict(state)
    *rows, weight = batch_of(number)
    losses = net(*rows)
    if means:
        spans = [shard_span(k, len(LABELS[number]), SHARDS) for k in range(SHARDS)]
        torch.stack([losses[slice(*span)].mean() for span in spans if span[0] < span[1]]).mean().backward()
    elif weighted:
        ((losses * weight).sum() / weight.sum()).backward()
    else:
        losses.mean().backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def job(mode: ModeCase) -> JobSpec:
    return JobSpec.parse(
        {
            "name": mode.name,
            "entrypoint": "test_weighting:train",
            "workers": {"min": WORKERS, "max": WORKERS},
            "batch": {"global_size": max(map(len, LABELS)), "logical_shards": SHARDS},
            "sync": dict(mode.sync),
        }
    )


def play(mode: ModeCase, taught: Taught, place: Path) -> Play:
    return ThreadedCast(job(mode), taught, artifacts=place, nodes=NODES).play()


def apart(one: Tensor, other: Tensor) -> float:
    """How far, in lengths of the other."""
    return float((one - other).norm() / other.norm())


def check(mode: ModeCase, taught: Taught) -> None:
    """Every member's moves are those of one process; an outer optimizer sees them as its gradients."""
    (first, *others) = taught.seen.values()
    expected = {name: nn.Parameter(torch.zeros_like(value)) for name, value in first[0].items()}
    outer = OUTER[str(mode.sync.get("outer", "average"))](list(expected.values()))
    for (number, weighted), (before, after) in zip(taught.loops, pairwise(first), strict=True):
        whole = gradient(before, number, weighted=weighted)
        for name, parameter in expected.items():
            parameter.grad = RATE * whole[name]
        was = {name: p.detach().clone() for name, p in expected.items()}
        outer.step()
        for name, parameter in expected.items():
            moved = after[name] - before[name]
            assert apart(moved, parameter.detach() - was[name]) < CLOSE, (number, weighted, name)
    for other in others:
        for name, value in first[-1].items():
            assert torch.equal(other[-1][name], value), name


def test_means_of_means_would_be_noticed() -> None:
    """Of the batches whose slices differ: by five times what the tests below let pass."""
    zero = state_of(Net())
    for number in (1, 2):
        plain, weighted = (gradient(zero, number, weighted=w) for w in (False, True))
        means = gradient(zero, number, weighted=False, means=True)
        for name, value in plain.items():
            assert apart(means[name], value) > 5 * CLOSE
            assert apart(weighted[name], value) > 5 * CLOSE


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_step_is_that_of_one_process_on_the_concatenated_batch(mode: ModeCase, tmp_path: Path) -> None:
    """By rows; and by weights of the user's own, but for token rings (below) and asynchronous servers, whose items are
    updates before the others' weights are known (`test_alone_every_item_is_an_update_of_its_own`)."""
    sync = job(mode).sync
    rows_only = sync.circulates or sync.consistency == "async"
    taught = Taught(BY_ROWS if rows_only else (*BY_ROWS, *WEIGHTED))
    played = play(mode, taught, tmp_path)
    assert played.outcome == "succeeded", (played.reason, played.message)
    assert len(taught.seen) == WORKERS + sync.server_count
    check(mode, taught)


@pytest.mark.parametrize("mode", [m for m in MODES if job(m).sync.circulates], ids=lambda mode: mode.name)
def test_where_weights_travel_as_tokens_a_weight_of_the_users_own_is_refused(
    mode: ModeCase, tmp_path: Path
) -> None:
    played = play(mode, Taught(WEIGHTED), tmp_path)
    assert played.outcome == "failed"
    assert "weights slices by their rows" in played.message
