"""Local SGD in one process: rounds of inner steps, one replica a logical shard, one outer step."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

import ringleader
from ringleader.errors import NonFiniteLoss, StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, SingleMember, run_local
from ringleader.train.modes.local_sgd.outer_step import OUTER_LR, OUTER_MOMENTUM
from ringleader.train.run import run

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
ROWS, BATCH, SHARDS, INNER = 52, 16, 4, 3
PER_SHARD = BATCH // SHARDS


def spec(**changes: Any) -> dict[str, Any]:
    sync = {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": INNER, **changes}
    return {
        "name": "local",
        "entrypoint": "local:train",
        "workers": {"max": SHARDS},
        "batch": {"global_size": BATCH},
        "sync": sync,
        "debug": {"ledger": True},
    }


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 5, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


OPTIMIZERS = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.02),
    "nadam": lambda net: torch.optim.NAdam(net.parameters(), lr=0.02),
}


def ours(kind: str, sync: dict[str, Any], epochs: int, folder: Path) -> list[Tensor]:
    found: list[Tensor] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(OPTIMIZERS[kind](net))
        for _ in range(epochs):
            for x, y in session.batches(rows(), shuffle=False):
                session.step(F.cross_entropy(net(x), y))
        found.extend(parameter.detach().clone() for parameter in net.parameters())

    run_local(spec(**sync), train, folder)
    return found


def tree_sum(values: list[Tensor]) -> Tensor:
    return (values[0] + values[1]) + (values[2] + values[3])


def by_hand(kind: str, outer: str, epochs: int) -> list[Tensor]:
    """Plain torch: four copies of net and optimizer a round; their moves and states averaged by rows."""
    x, y = rows().tensors
    net = small_net()
    optimizer = OPTIMIZERS[kind](net)
    momentum = [torch.zeros_like(p) for p in net.parameters()]
    for first, steps in [(0, 3), (3, 1)] * epochs:  # 52 rows: three batches of 16, one of 4
        replicas = [replica(net, optimizer, kind) for _ in range(SHARDS)]
        for shard, (copied, inner) in enumerate(replicas):
            for step in range(first, first + steps):
                size = min(BATCH, ROWS - step * BATCH) // SHARDS
                low = step * BATCH + shard * size
                inner.zero_grad()
                F.cross_entropy(copied(x[low : low + size]), y[low : low + size]).backward()
                inner.step()
        share = 1 / SHARDS
        with torch.no_grad():
            for number, p in enumerate(net.parameters()):
                others = [list(copied.parameters())[number] for copied, _ in replicas]
                move = tree_sum([(p - other) * share for other in others])
                if outer == "nesterov":
                    momentum[number] = OUTER_MOMENTUM * momentum[number] + move
                    move = OUTER_LR * (move + OUTER_MOMENTUM * momentum[number])
                p.sub_(move)
                states = [inner.state[other] for (_, inner), other in zip(replicas, others, strict=True)]
                optimizer.state[p] = {
                    name: tree_sum([s[name] * share for s in states]) if value.dim() else value.clone()
                    for name, value in states[0].items()
                }
    return [p.detach() for p in net.parameters()]


def replica(net: nn.Module, optimizer: Optimizer, kind: str) -> tuple[nn.Module, Optimizer]:
    copied = copy.deepcopy(net)
    inner = OPTIMIZERS[kind](copied)
    inner.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return copied, inner


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_averaged_rounds_equal_a_loop_by_hand_bit_for_bit(kind: str, tmp_path: Path) -> None:
    for mine, theirs in zip(ours(kind, {}, 3, tmp_path), by_hand(kind, "average", 3), strict=True):
        assert torch.equal(mine, theirs)


def test_nesterov_rounds_equal_a_loop_by_hand(tmp_path: Path) -> None:
    mine, theirs = ours("adam", {"outer": "nesterov"}, 4, tmp_path), by_hand("adam", "nesterov", 4)
    for ours_, by_hand_ in zip(mine, theirs, strict=True):
        # torch fuses the multiply and the add of the momentum: a rounding less in each round.
        torch.testing.assert_close(ours_, by_hand_, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("anew", [False, True])
def test_one_replica_is_plain_training(anew: bool, tmp_path: Path) -> None:
    """With one shard the average of the replicas is the replica, also behind an optimizer made anew between loops."""
    finals: list[list[Tensor]] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        for epoch in range(3):
            if anew and epoch == 1:
                session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))
        finals.append([p.detach().clone() for p in net.parameters()])

    alone = {"workers": {"max": 1}}
    run_local(spec() | alone, train, tmp_path)
    run_local(spec() | alone | {"sync": "ring"}, train, tmp_path)
    for mine, plain in zip(*finals, strict=True):
        # start - (start - end) is the end but for one rounding a round.
        torch.testing.assert_close(mine, plain, rtol=1e-5, atol=1e-6)


def test_a_round_of_one_sgd_step_is_the_ring(tmp_path: Path) -> None:
    """Averaging weights after one step of plain SGD is averaging gradients."""
    finals: list[list[Tensor]] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y), weight=float(len(y)) * 2)
        finals.append([p.detach().clone() for p in net.parameters()])

    run_local(spec(inner_steps=1), train, tmp_path)
    run_local(spec() | {"sync": "ring"}, train, tmp_path)
    for mine, ring in zip(*finals, strict=True):
        # The learning rate is multiplied before the sum here and after it there: float32 roundings.
        torch.testing.assert_close(mine, ring, rtol=1e-5, atol=1e-6)


def test_a_round_commits_its_steps_at_once_and_every_row_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    callbacks: list[int] = []
    rates: list[float] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=1.0))
        session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5))
        session.on_commit(lambda: callbacks.append(session.global_step))
        for _ in range(2):
            for x, y in session.batches(rows()):
                seen.append((session.global_step, len(y)))
                rates.append(optimizer.param_groups[0]["lr"])
                session.step(F.cross_entropy(net(x), y), mean=x.mean())

    finished, sink = run_local(spec(), train, tmp_path)
    assert finished.steps == 8
    assert finished.samples == 2 * ROWS
    one_epoch = [(0, PER_SHARD)] * INNER * SHARDS + [(3, 1)] * SHARDS
    assert seen == one_epoch + [(step + 4, size) for step, size in one_epoch]
    assert callbacks == list(range(1, 9))
    assert rates[: INNER * SHARDS] == [1.0, 0.5, 0.25] * SHARDS
    assert rates[-1] == 0.5**7
    assert list(sink.values) == list(range(1, 9))
    for epoch in range(2):
        taken = [row for step in range(epoch * 4 + 1, epoch * 4 + 5) for row in sink.rows[step][1].tolist()]
        assert sorted(taken) == list(range(ROWS))


def test_metrics_are_the_means_over_the_rows_of_each_batch(tmp_path: Path) -> None:
    data = rows()

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.0))
        for x, y in session.batches(data, shuffle=False):
            session.step(F.cross_entropy(net(x), y), mean=x.mean())

    _, sink = run_local(spec(), train, tmp_path)
    net, (x, y) = small_net(), data.tensors
    for step in range(4):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        loss = F.cross_entropy(net(x[batch]), y[batch]).item()
        assert sink.values[step + 1]["mean"] == pytest.approx(float(x[batch].mean()), abs=1e-6)
        assert sink.values[step + 1]["loss"] == pytest.approx(loss)


def test_a_batch_of_fewer_rows_than_shards_is_a_step(tmp_path: Path) -> None:
    data = TensorDataset(*(tensor[: BATCH * INNER + 2] for tensor in rows().tensors))

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        session.optimizer(torch.optim.Adam(net.parameters(), lr=0.1))
        for _ in range(2):
            for x, y in session.batches(data):
                session.step(F.cross_entropy(net(x), y))

    finished, sink = run_local(spec(), train, tmp_path)
    assert (finished.steps, finished.samples) == (8, 2 * len(data))
    assert sorted(sink.rows[4][0].tolist()) == [1, 3]


def test_stop_and_break_end_the_loop_at_a_rounds_end() -> None:
    with ringleader.local_session(spec()) as session:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.stop()
            session.step(F.cross_entropy(net(x), y))
        assert session.global_step == INNER
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            if session.global_step == 2 * INNER:
                break
        session.evaluate(rows(), lambda batch: {"right": (net(batch[0]).argmax(1) == batch[1]).float()})
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            break
        with pytest.raises(StepMisuse, match="middle of a batch"):
            session.evaluate(rows(), lambda batch: {"right": (net(batch[0]).argmax(1) == batch[1]).float()})


def test_a_parameter_that_no_replica_used_is_left_alone() -> None:
    with ringleader.local_session(spec()) as session:
        used, unused = nn.Linear(5, 2), nn.Linear(5, 2)
        session.model(nn.ModuleList([used, unused]))
        before = unused.weight.detach().clone()
        optimizer = session.optimizer(
            torch.optim.AdamW([*used.parameters(), *unused.parameters()], lr=0.1, weight_decay=0.5)
        )
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(used(x), y))
        assert torch.equal(unused.weight, before)
        assert unused.weight not in optimizer.state
        assert float(optimizer.state[used.weight]["step"]) == 4


def test_a_parameter_that_only_some_replicas_used_counts_the_steps_of_the_first_of_them() -> None:
    with ringleader.local_session(spec()) as session:
        used, seldom = nn.Linear(5, 2), nn.Linear(5, 2)
        session.model(nn.ModuleList([used, seldom]))
        optimizer = session.optimizer(torch.optim.Adam([*used.parameters(), *seldom.parameters()], lr=0.1))
        for turn, (x, y) in enumerate(session.batches(rows())):
            if session.global_step == INNER:
                break
            logits = used(x) + (seldom(x) if turn in (INNER + 1, INNER * 3) else 0.0)
            session.step(F.cross_entropy(logits, y))
        assert float(optimizer.state[used.weight]["step"]) == INNER
        assert float(optimizer.state[seldom.weight]["step"]) == 1
        assert float(optimizer.state[seldom.weight]["exp_avg"].abs().sum()) > 0


def test_an_optimizer_whose_state_has_no_average_is_named() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["seen"] = ["a list"]

    with ringleader.local_session(spec()) as session:
        net = session.model(small_net())
        session.optimizer(Counting(net.parameters(), lr=0.1))
        with pytest.raises(StepMisuse, match="Counting keeps 'seen'"):
            next(iter(session.batches(rows())))


def test_a_loss_that_is_not_a_number_names_its_step() -> None:
    with ringleader.local_session(spec()) as session:
        net = session.model(small_net())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))

        def diverge() -> None:
            for turn, (x, y) in enumerate(session.batches(rows())):
                session.step(F.cross_entropy(net(x), y) * (float("nan") if turn == 1 else 1.0))

        with pytest.raises(NonFiniteLoss, match="step 2"):
            diverge()


class Interrupting(SingleMember):
    """Gives the generation up once, when it is asked for the fifth time."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.asked = 0

    def interrupted(self) -> bool:
        self.asked += 1
        return self.asked == 5


def test_a_worker_leaves_a_round_that_was_given_up_at_once_and_redoes_it(tmp_path: Path) -> None:
    turns: list[int] = []

    def train(session: ringleader.Session) -> None:
        net = session.model(
            nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
        )
        optimizer = session.optimizer(torch.optim.Adam(net.parameters(), lr=0.05), clip_norm=1.0)
        session.scheduler(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4))
        data = TensorDataset(*(tensor[: BATCH * INNER] for tensor in rows().tensors))
        for x, y in session.batches(data):
            turns.append(len(x))
            session.step(F.cross_entropy(net(x), y))

    undisturbed, _ = run_local(spec(), train, tmp_path)
    assert len(turns) == INNER * SHARDS
    sink = RecordedOutput()
    finished = run(
        spec=JobSpec.parse(spec()),
        function=train,
        coordinator=Interrupting(SHARDS),
        sink=sink,
        server=False,
        artifacts=tmp_path,
    )
    assert len(turns) == INNER * SHARDS + 5 + INNER * SHARDS
    assert (finished.generations, finished.steps) == (2, INNER)
    assert finished.digest == undisturbed.digest
    assert list(sink.values) == [1, 2, 3]


def test_prefetching_processes_change_no_bit(tmp_path: Path) -> None:
    def train(session: ringleader.Session, loaders: int) -> None:
        net = session.model(
            nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
        )
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.5), clip_norm=1.0)
        data = TensorDataset(*(tensor[: BATCH * INNER] for tensor in rows().tensors))
        for x, y in session.batches(data, loader_workers=loaders):
            session.step(F.cross_entropy(net(x), y))

    plain, _ = run_local(spec(), lambda session: train(session, 0), tmp_path)
    prefetched, _ = run_local(spec(), lambda session: train(session, 1), tmp_path)
    assert plain.digest == prefetched.digest


@pytest.mark.parametrize("by_callback", [False, True])
def test_an_option_switched_inside_a_loop_is_refused(by_callback: bool, tmp_path: Path) -> None:
    """A checkpoint or a joiner of that moment would lay its rounds without the momentum that all others average."""

    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9))

        def switch() -> None:
            optimizer.param_groups[0]["momentum"] = 0.0 if session.global_step >= 2 else 0.9

        if by_callback:
            session.on_commit(switch)
        for x, y in session.batches(rows(), shuffle=False):
            if not by_callback:
                switch()
            session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match="'momentum' was switched on or off inside a loop"):
        run_local(spec(inner_steps=1), train, tmp_path)


def test_an_option_may_be_switched_between_loops(tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        net = session.model(small_net())
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9))
        for momentum in (0.0, 0.9):
            optimizer.param_groups[0]["momentum"] = momentum
            for x, y in session.batches(rows(), shuffle=False):
                session.step(F.cross_entropy(net(x), y))

    finished, _ = run_local(spec(), train, tmp_path)
    assert finished.steps == 8
