"""Every synchronous architecture on two pretended nodes: its gradients are those of one process on the whole batch."""

import multiprocessing as mp
from functools import partial
from pathlib import Path

import pytest
import torch
from cast import Cast
from exchange_members import synchronous
from test_group_faults import job
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.spec.sync import Sync
from ringleader.train import Session

ROWS, BATCH, STEPS = 74, 30, 3
"""The last batch has 14 rows. Four shards hold 7, 8, 7, 8 of 30 rows and 3, 4, 3, 4 of 14: means of means are wrong."""

NODES = {"w1": 1, "w2": 1, "s0": 0, "s1": 1, "w3": 0, "w4": 1}
EACH_BATCH = {name: sync for name, sync in synchronous().items() if sync.round_steps == 1}


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, 6, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def noting(session: Session, folder: Path) -> None:
    """Whoever updates leaves the weights and the gradients that it has, right before each update."""
    net = session.model(network())
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9))

    def note(*_: object) -> None:
        seen = {name: (p.detach().clone(), p.grad) for name, p in net.named_parameters()}
        torch.save(seen, folder / f"{session.global_step}-{mp.current_process().name}")

    optimizer.register_step_pre_hook(note)
    for x, y in session.batches(TensorDataset(*rows())):
        session.step(F.cross_entropy(net(x), y))


def gradient(weights: dict[str, Tensor], batches: list[Tensor]) -> dict[str, Tensor]:
    """One process's gradient of the mean loss of each batch, averaged."""
    net, (x, y) = network(), rows()
    net.load_state_dict(weights)
    for batch in batches:
        (F.cross_entropy(net(x[batch]), y[batch]) / len(batches)).backward()
    return {name: p.grad for name, p in net.named_parameters()}


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    # The rows are added in another order: some units in the last place of float32, of sums near 0.1.
    return all(torch.allclose(one[name], other[name], rtol=1e-5, atol=1e-6) for name in one)


def with_two_servers(sync: Sync) -> dict[str, object]:
    words: dict[str, object] = {"inter_node": sync.inter_node, "intra_node": sync.intra_node}
    return words | ({"servers": 2} if sync.server_count else {})


@pytest.mark.parametrize("name", EACH_BATCH)
def test_gradients_are_those_of_one_process_on_the_concatenated_batch(name: str, tmp_path: Path) -> None:
    """Three workers; averages are weighted by rows: means over workers or slices would not pass."""
    spec = job(sync=with_two_servers(EACH_BATCH[name]), batch={"global_size": BATCH, "logical_shards": 4})
    folder = tmp_path / "notes"
    folder.mkdir()
    play = Cast(spec, partial(noting, folder=folder), artifacts=tmp_path, nodes=NODES).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [len(batch) for _, _, batch in play.rows] == [30, 30, 14]
    for step, (_, shards, batch) in enumerate(play.rows):
        notes = [torch.load(path) for path in sorted(folder.glob(f"{step}-*"))]
        assert len(notes) == (2 if spec.sync.server_count else 3)
        for seen in notes[1:]:
            assert all(torch.equal(seen[key][0], notes[0][key][0]) for key in seen), "the weights differ"
        found = [{k: g for k, (_, g) in seen.items() if g is not None} for seen in notes]
        whole = {key: value for part in found for key, value in part.items()}
        weights = {key: value for key, (value, _) in notes[0].items()}
        taken = torch.from_numpy(batch)
        expected = gradient(weights, [taken])
        assert set(whole) == set(expected)
        for part in found:
            assert close(part, expected)
        slices = [taken[torch.from_numpy(shards) == k] for k in range(4)]
        assert not close(gradient(weights, slices), expected), "the test could not tell"
