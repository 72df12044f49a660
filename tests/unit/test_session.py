"""What a training function may do and must not do, in one process."""

import copy
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset, TensorDataset

import ringleader
from ringleader.errors import (
    DatasetUnsupported,
    EntrypointRaised,
    NonFiniteLoss,
    NoStep,
    SpecInvalid,
    StepMisuse,
)
from ringleader.train.local import run_local
from ringleader.train.state.parameters.sparse import check_optimizers

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("elsewhere")
ROWS = 56
SPEC: dict[str, Any] = {
    "name": "unit",
    "entrypoint": "unit:train",
    "workers": {"max": 4},
    "batch": {"global_size": 16},
    "debug": {"ledger": True},
}


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 5, generator=generator)
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def net(session: ringleader.Session) -> nn.Module:
    model = session.model(nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2)))
    session.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5), clip_norm=1.0)
    return model


def accuracy(model: nn.Module) -> Any:
    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(dim=1) == batch[1]).float()}

    return score


def learn(session: ringleader.Session, epochs: int = 2) -> nn.Module:
    model = net(session)
    for _ in range(epochs):
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))
    return model


def test_a_local_run_commits_every_step_and_every_row_once(tmp_path: Path) -> None:
    finished, sink = run_local(SPEC, lambda session: void(learn(session, epochs=3)), tmp_path)
    assert finished.steps == 3 * 4
    assert finished.samples == 3 * ROWS
    assert sorted(sink.values) == list(range(1, 13))
    for epoch in range(3):
        taken = [row for step in range(epoch * 4 + 1, epoch * 4 + 5) for row in sink.rows[step][1].tolist()]
        assert sorted(taken) == list(range(ROWS))
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.everyday
def test_training_learns_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    first, sink = run_local(SPEC, lambda session: void(learn(session, epochs=8)), tmp_path)
    second, _ = run_local(SPEC, lambda session: void(learn(session, epochs=8)), tmp_path)
    assert first.digest == second.digest
    losses = [sink.values[step]["loss"] for step in range(1, first.steps + 1)]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_the_seed_changes_the_bits(tmp_path: Path) -> None:
    first, _ = run_local(SPEC, lambda session: void(learn(session)), tmp_path)
    second, _ = run_local(SPEC | {"seed": 1}, lambda session: void(learn(session)), tmp_path)
    assert first.digest != second.digest


def test_gradients_equal_one_process_on_the_whole_batch() -> None:
    data = rows()
    with ringleader.local_session(SPEC | {"batch": {"global_size": ROWS}}) as session:
        model = session.model(nn.Linear(5, 2))
        plain = nn.Linear(5, 2)
        plain.load_state_dict(model.state_dict())
        session.optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        for x, y in session.batches(data):
            session.step(F.cross_entropy(model(x), y))
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    F.cross_entropy(plain(data.tensors[0]), data.tensors[1]).backward()
    optimizer.step()
    # Four slices are added in another order than one batch: a few float32 roundings.
    torch.testing.assert_close(model.weight, plain.weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "sync",
    ["ring", {"intra_node": "parameter_server", "inter_node": "parameter_server", "consistency": "async"}],
)
def test_fused_optimizers_take_weights_of_any_memory_format(sync: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(8, 3, 5, 5, generator=generator))
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 4, 3)
    one_update = {"batch": {"global_size": 8, "logical_shards": 1}, "workers": {"max": 1}, "sync": sync}
    with ringleader.local_session(SPEC | one_update) as session:
        model = session.model(copy.deepcopy(plain).to(memory_format=torch.channels_last))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=1.0, fused=True))
        for (x,) in session.batches(data, shuffle=False):
            session.step(model(x).square().mean())
    plain(data.tensors[0]).square().mean().backward()
    # Another memory format is another order of sums: some units in the last place of float32.
    torch.testing.assert_close(model.weight, plain.weight - plain.weight.grad, rtol=1e-5, atol=1e-6)


def test_explicit_weights_make_a_weighted_mean() -> None:
    data = TensorDataset(torch.eye(4), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    with ringleader.local_session(SPEC | {"batch": {"global_size": 4}}) as session:
        model = session.model(nn.Linear(4, 1, bias=False))
        nn.init.zeros_(model.weight)
        session.optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        for x, y in session.batches(data, shuffle=False):
            session.step(-(model(x).squeeze(1) * y).mean(), weight=float(y.sum()))
    # Gradient of row i is -y_i * x_i, weighted by y_i / 10.
    torch.testing.assert_close(model.weight[0], torch.tensor([0.1, 0.4, 0.9, 1.6]), rtol=1e-6, atol=0)


def test_evaluate_is_the_plain_mean_over_all_rows() -> None:
    with ringleader.local_session(SPEC) as session:
        model = learn(session)
        scores = session.evaluate(rows(), accuracy(model))
        assert model.training
        model.eval()
        data = rows()
        plain = (model(data.tensors[0]).argmax(dim=1) == data.tensors[1]).float().mean()
    assert scores == {"accuracy": pytest.approx(float(plain))}


def test_stop_ends_the_loop_after_this_step() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        for x, y in session.batches(rows()):
            if session.global_step == 1:
                session.stop()
            session.step(F.cross_entropy(model(x), y))
        assert session.global_step == 2
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))
        assert session.global_step == 2 + 4


def test_a_loop_may_be_left_on_a_committed_value() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))
            if session.global_step == 2:
                break
        session.evaluate(rows(), accuracy(model))
        assert session.global_step == 2


def test_leaving_a_loop_in_the_middle_of_a_batch_is_named() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))
            break
        with pytest.raises(StepMisuse, match="middle of a batch"):
            session.evaluate(rows(), accuracy(model))


def test_a_call_inside_a_loop_is_named() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        batches = session.batches(rows())
        x, y = next(batches)
        session.step(F.cross_entropy(model(x), y))
        with pytest.raises(StepMisuse, match="inside a loop"):
            session.evaluate(rows(), accuracy(model))


def test_a_stop_after_the_last_step_does_not_reach_into_the_next_loop() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        for _ in range(2):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(model(x), y))
            session.stop()
        assert session.global_step == 2 * 4


def test_weights_that_are_not_finite_are_no_success(tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        model = session.model(nn.Linear(5, 2))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            poison = (model.weight * 0).sum().pow(2).sqrt() if session.global_step == 3 else 0.0
            session.step(F.cross_entropy(model(x), y) + poison)

    with pytest.raises(NonFiniteLoss, match="not finite"):
        run_local(SPEC, train, tmp_path)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_not_positive_is_named(weight: float) -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        x, y = next(session.batches(rows()))
        with pytest.raises(StepMisuse, match="weight="):
            session.step(F.cross_entropy(model(x), y), weight=weight)


def test_metrics_that_change_from_turn_to_turn_are_named() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        batches = session.batches(rows())
        x, y = next(batches)
        session.step(F.cross_entropy(model(x), y), a=1.0)
        x, y = next(batches)
        with pytest.raises(StepMisuse, match="the metrics"):
            session.step(F.cross_entropy(model(x), y), b=2.0)


def test_an_optimizer_over_an_unregistered_model_is_named() -> None:
    with ringleader.local_session(SPEC) as session:
        net(session)
        session.optimizer(torch.optim.SGD(nn.Linear(5, 2).parameters(), lr=0.1))
        with pytest.raises(StepMisuse, match=r"belong to no registered model.*nn\.ParameterDict"):
            next(session.batches(rows()))


def test_a_loop_without_an_optimizer_is_named() -> None:
    with ringleader.local_session(SPEC) as session:
        session.model(nn.Linear(5, 2))
        with pytest.raises(StepMisuse, match="no optimizer"):
            next(session.batches(rows()))


def test_two_steps_in_a_turn_are_named() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        x, y = next(iter(session.batches(rows())))
        session.step(F.cross_entropy(model(x), y))
        with pytest.raises(StepMisuse, match="called twice"):
            session.step(F.cross_entropy(model(x), y))


def test_a_turn_without_a_step_is_named() -> None:
    with ringleader.local_session(SPEC) as session:
        net(session)
        with pytest.raises(StepMisuse, match=r"was not called.*session\.step\(loss \* 0\) before `continue`"):
            for _ in session.batches(rows()):
                pass


def test_rows_whose_loss_is_multiplied_by_0_change_no_weight() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        before = [parameter.clone() for parameter in model.parameters()]
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y) * 0)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_extra_state_is_refused_with_what_to_do_instead() -> None:
    class Warm(nn.Linear):
        def get_extra_state(self) -> dict[str, float]:
            return {"temperature": 1.0}

    with ringleader.local_session(SPEC) as session:
        model = session.model(Warm(5, 2))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
        with pytest.raises(StepMisuse, match=r"'_extra_state' .*as buffers.*session\.keep\(name, object\)"):
            next(session.batches(rows()))


def test_a_loss_that_is_not_a_number_ends_the_run() -> None:
    with ringleader.local_session(SPEC) as session:
        model = net(session)

        def diverge() -> None:
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(model(x), y) * float("nan"))

        with pytest.raises(NonFiniteLoss, match="step 1"):
            diverge()


@pytest.mark.parametrize("slices", [1, 2], ids=["a batch is a slice", "a batch is two"])
def test_a_loss_that_is_not_a_number_is_not_passed_over(slices: int) -> None:
    """Who catches it and goes on meets it again, instead of a word about a loop that was left."""
    batch = {"global_size": 16, "logical_shards": slices}
    with ringleader.local_session(SPEC | {"batch": batch, "workers": {"max": 1}}) as session:
        model = net(session)
        with suppress(NonFiniteLoss):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(model(x), y) * float("nan"))
        with pytest.raises(NonFiniteLoss, match="step 1"):
            next(session.batches(rows()))
        with pytest.raises(NonFiniteLoss, match="step 1"):
            session.evaluate(rows(), lambda batch: {"one": torch.ones(len(batch[0]))})


def test_an_iterable_dataset_is_a_type_error_that_names_the_way_out() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with ringleader.local_session(SPEC) as session:
        net(session)
        with pytest.raises(TypeError, match="ParquetDataset") as caught:
            session.batches(Stream())
    assert isinstance(caught.value, DatasetUnsupported)


def test_returning_without_a_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoStep, match="without a step"):
        run_local(SPEC, lambda session: void(net(session)), tmp_path)


def test_user_exceptions_say_where(tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        model = net(session)
        for x, y in session.batches(rows()):
            if session.global_step == 2:
                raise KeyError("where is it")
            session.step(F.cross_entropy(model(x), y))

    with pytest.raises(EntrypointRaised, match="where is it") as caught:
        run_local(SPEC, train, tmp_path)
    assert (caught.value.step, caught.value.shard) == (2, 0)


def test_callbacks_and_schedules_run_once_a_committed_step() -> None:
    calls: list[int] = []
    with ringleader.local_session(SPEC) as session:
        model = net(session)
        optimizer = session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        schedule = session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5))
        session.on_commit(lambda: calls.append(session.global_step))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))
        assert schedule.get_last_lr() == [0.1 * 0.5**4]
    assert calls == [1, 2, 3, 4]


def test_a_parameter_no_slice_reached_is_left_alone() -> None:
    with ringleader.local_session(SPEC) as session:
        used, unused = nn.Linear(5, 2), nn.Linear(5, 2)
        session.model(nn.ModuleList([used, unused]))
        before = unused.weight.detach().clone()
        session.optimizer(
            torch.optim.SGD([*used.parameters(), *unused.parameters()], lr=0.1, weight_decay=0.5)
        )
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(used(x), y))
        assert torch.equal(unused.weight, before)


def test_prefetching_processes_change_no_bit(tmp_path: Path) -> None:
    def train(session: ringleader.Session, loaders: int) -> None:
        model = net(session)
        for x, y in session.batches(rows(), loader_workers=loaders):
            session.step(F.cross_entropy(model(x), y))

    plain, _ = run_local(SPEC, lambda session: train(session, 0), tmp_path)
    prefetched, _ = run_local(SPEC, lambda session: train(session, 2), tmp_path)
    assert plain.digest == prefetched.digest


def void(_: object) -> None:
    """A training function returns nothing."""


class Counting(nn.Module):
    """Replaces its buffers in every forward, in training and in evaluation."""

    def __init__(self, grows: bool = False) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(5))
        self.grows = grows

    def forward(self, x: Tensor) -> Tensor:
        self.calls = torch.zeros(3) if self.grows else self.calls + 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0)
        return x - self.mean


def test_buffers_that_a_forward_replaces_end_as_the_first_shard_of_every_step_left_them(
    tmp_path: Path,
) -> None:
    counting = Counting()

    def train(session: ringleader.Session) -> None:
        model = session.model(nn.Sequential(counting, nn.Linear(5, 2)))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))
        session.evaluate(rows(), accuracy(model))

    finished, _ = run_local(SPEC, train, tmp_path)
    assert finished.steps == 4
    assert counting.calls.item() == 4, "one call a step counts, and none of the evaluation"


def test_a_last_batch_without_rows_for_the_first_shard_leaves_the_buffers_as_they_are(tmp_path: Path) -> None:
    counting = Counting()

    def train(session: ringleader.Session) -> None:
        model = session.model(nn.Sequential(counting, nn.Linear(5, 2)))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in session.batches(TensorDataset(*rows()[:50])):
            session.step(F.cross_entropy(model(x), y))

    finished, _ = run_local(SPEC, train, tmp_path)
    assert finished.steps == 4, "the last one has two rows in four shards"
    assert counting.calls.item() == 3


def test_a_buffer_that_changes_its_shape_is_the_users_error(tmp_path: Path) -> None:
    def train(session: ringleader.Session) -> None:
        model = session.model(nn.Sequential(Counting(grows=True), nn.Linear(5, 2)))
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))

    with pytest.raises(StepMisuse, match=r"'0\.calls' of shape \(\) now has shape \(3,\)"):
        run_local(SPEC, train, tmp_path)


class Odd(nn.Module):
    """Its parameters are overlapping parts of one memory; `strange` is a buffer beside them."""

    def __init__(self, strange: Tensor) -> None:
        super().__init__()
        whole = torch.ones(8)
        self.low, self.high = nn.Parameter(whole[:6]), nn.Parameter(whole[2:])
        self.register_buffer("strange", strange)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x.sum(dim=1) * self.low.sum(), x[:, 0] * self.high.sum()], dim=1)


def learn_odd(model: nn.Module) -> Any:
    def train(session: ringleader.Session) -> None:
        session.model(model)
        session.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(model(x), y))

    return train


def test_weights_that_share_memory_in_part_are_written_one_by_one(tmp_path: Path) -> None:
    model = Odd(torch.zeros(3, 4).t())
    finished, _ = run_local(SPEC, learn_odd(model), tmp_path)
    assert finished.steps == 4
    written = load_file(tmp_path / "weights.safetensors")
    assert sorted(written) == ["high", "low", "strange"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(written[name], tensor)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize(
    ("strange", "what"),
    [
        (torch.zeros(2, dtype=torch.complex128), "of torch.complex128"),
        (torch.zeros(2, 2).to_sparse(), "of layout torch.sparse_coo"),
    ],
)
def test_what_no_weights_file_can_hold_is_found_before_the_first_step(
    strange: Tensor, what: str, tmp_path: Path
) -> None:
    turns = []
    model = Odd(strange)
    model.register_forward_pre_hook(lambda *_: turns.append(1))
    with pytest.raises(StepMisuse, match=f"state 'strange' is .*{what}"):
        run_local(SPEC, learn_odd(model), tmp_path)
    assert turns == []


def test_a_table_takes_an_optimizer_for_sparse_gradients_or_is_refused_by_name(tmp_path: Path) -> None:
    def embed(optimizer: Any, **changes: Any) -> Any:
        def train(session: ringleader.Session) -> None:
            model = session.model(
                nn.Sequential(nn.EmbeddingBag(50, 4, sparse=True, **changes), nn.Linear(4, 2))
            )
            session.optimizer(optimizer(model[0].parameters()))
            session.optimizer(torch.optim.Adam(model[1].parameters()), clip_norm=1.0)
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(model((x.abs() * 20).long() % 50), y))

        return train

    finished, sink = run_local(SPEC, embed(torch.optim.SparseAdam), tmp_path)
    assert finished.steps == 4
    assert sink.values[1]["comm_bytes"] == 0.0  # alone
    for refused in (torch.optim.Adam, lambda p: torch.optim.SGD(p, weight_decay=0.1)):
        with pytest.raises(
            StepMisuse, match=r"does not support the sparse gradient of 0\.weight.*SparseAdam"
        ):
            run_local(SPEC, embed(refused), tmp_path)
    with pytest.raises(StepMisuse, match=r"0\.weight.*max_norm"):
        run_local(SPEC, embed(torch.optim.SparseAdam, max_norm=1.0), tmp_path)


@pytest.mark.parametrize(
    ("optimizer", "fits"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), False),
        (torch.optim.SparseAdam, True),
        (torch.optim.Adagrad, True),
        (lambda p: torch.optim.Adagrad(p, weight_decay=0.1), False),
        (torch.optim.AdamW, False),
    ],
)
def test_servers_take_optimizers_that_change_rows_with_a_gradient_only(optimizer: Any, fits: bool) -> None:
    weight = nn.Parameter(torch.zeros(3, 2))
    made = [(optimizer([weight]), None)]
    check_optimizers(made, {weight: "items.weight"}, published=False)
    check_optimizers(made, {}, published=True)
    if fits:
        check_optimizers(made, {weight: "items.weight"}, published=True)
        return
    with pytest.raises(StepMisuse, match=r"servers publish only rows with one: items\.weight"):
        check_optimizers(made, {weight: "items.weight"}, published=True)


@pytest.mark.parametrize("sync", ["local_sgd", "token_ring", "ring"])
def test_an_optimizer_that_cannot_work_is_refused_before_the_first_turn(sync: str) -> None:
    sparse = sync == "ring"  # elsewhere the gradients of tables are dense

    def sparse_adam(parameters: Any) -> Any:
        return torch.optim.SparseAdam(list(parameters))

    for optimizer, why in [
        (sparse_adam, rf"SparseAdam takes sparse gradients only, and with sync: {sync}"),
        (torch.optim.LBFGS, r"LBFGS\.step\(\) needs a closure"),
    ]:
        with ringleader.local_session(SPEC | {"sync": sync}) as session:
            model = session.model(
                nn.Sequential(nn.EmbeddingBag(50, 4, sparse=not sparse), nn.Linear(4, 2, bias=False))
            )
            session.optimizer(optimizer(model.parameters()))
            with pytest.raises(StepMisuse, match=why):
                next(session.batches(rows()))


def test_a_local_session_leaves_its_ledger_with_every_row_once(tmp_path: Path) -> None:
    with ringleader.local_session(SPEC, tmp_path / "artifacts") as session:
        learn(session)
        steps = session.global_step
    ledger = parquet.read_table(tmp_path / "artifacts" / "ledger.parquet").to_pydict()
    assert ledger["step"] == sorted(ledger["step"])
    assert set(ledger["step"]) == set(range(1, steps + 1))
    assert set(ledger["shard"]) == set(range(4))
    assert Counter(ledger["row"]) == dict.fromkeys(range(ROWS), 2)


def test_a_local_session_refuses_checkpoints_that_it_would_not_write() -> None:
    asked: list[dict[str, Any]] = [{"every_steps": 5}, {"uri": "/tmp/checkpoints"}]
    for checkpoint in asked:
        with (
            pytest.raises(SpecInvalid, match="no later attempt") as caught,
            ringleader.local_session(SPEC | {"checkpoint": checkpoint}),
        ):
            raise AssertionError("it began")
        assert caught.value.errors[0]["pointer"] == "/checkpoint/every_steps"
    for checkpoint in [{"every_steps": None}, {"keep": 2}]:
        with ringleader.local_session(SPEC | {"checkpoint": checkpoint}):
            """It begins."""
