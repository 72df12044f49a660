"""Ray Train's own example functions, unchanged, keep the session's bits, also while workers come and go."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from adapted import BATCH, SHARDS, SessionOrder, alone, close, differing, disturbed
from cast import Cast
from faults import FaultPlan
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ringleader.data import ParquetDataset
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.rows.random_streams import seed_all
from ringleader.train.run import load_function

RAY_DATA = Path(__file__).parent / "ray_data"
EXAMPLES = "ray.train.examples.pytorch"
LINEAR = {"lr": 1e-2, "hidden_size": 1, "batch_size": BATCH, "epochs": 3, "data_size": 96, "val_size": 40}
FASHION = {"lr": 1e-2, "epochs": 2, "batch_size_per_worker": BATCH}


@pytest.fixture(autouse=True)
def with_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(RAY_DATA))
    monkeypatch.setenv("HOME", str(tmp_path))


def job(entrypoint: str, params: dict[str, Any], sync: Any = "ring", **more: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "adopted",
            "entrypoint": f"{EXAMPLES}.{entrypoint}",
            "framework": "ray_train",
            "params": params,
            "env": {"PYTHONPATH": str(RAY_DATA)},
            "workers": {"min": 2, "max": 3},
            "batch": {"global_size": BATCH, "logical_shards": SHARDS},
            "checkpoint": {"every_steps": None},
            "sync": sync,
        }
        | more
    )


SERVERS = {"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2}


def linear(session: Session) -> None:
    """As `train_func` of Ray's linear example, for a session."""
    from ray.train.examples.pytorch.torch_linear_example import LinearDataset

    net = session.model(nn.Linear(1, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1e-2))
    for _ in range(3):
        for x, y in session.batches(LinearDataset(2, 5, size=96), shuffle=False):
            session.step(F.mse_loss(net(x), y))


def fashion(session: Session) -> None:
    """As `train_func_per_worker` of Ray's FashionMNIST example, for a session."""
    import ray.train.torch
    from ray.train.examples.pytorch import torch_fashion_mnist_example as theirs

    ray.train.torch.enable_reproducibility()
    rows, _ = theirs.get_dataloaders(BATCH)
    net = session.model(theirs.NeuralNetwork())
    session.optimizer(torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9))
    for _ in range(2):
        net.train()
        for x, y in session.batches(rows.dataset):
            session.step(F.cross_entropy(net(x), y))


def rays_own(entrypoint: str, params: dict[str, Any] | None) -> dict[str, Any]:
    """The weights of the newest checkpoint that a function reports in Ray's own run of it in one process."""
    from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils, set_train_fn_utils

    class Calls(LocalTrainFnUtils):
        weights: dict[str, Any] = {}

        def report(self, metrics: Any, checkpoint: Any = None, **_: Any) -> None:
            self.weights = torch.load(Path(checkpoint.path) / "model.pt")

    calls = Calls(experiment_name="alone")
    seed_all(0, "init")
    set_train_fn_utils(calls)
    try:
        function: Any = load_function(f"{EXAMPLES}.{entrypoint}")
        function(*([] if params is None else [params]))
    finally:
        set_train_fn_utils(None)
    return calls.weights


def test_the_linear_example_ends_as_ray_does_and_as_a_native_function_bit_for_bit(tmp_path: Path) -> None:
    spec = job("torch_linear_example:train_func", LINEAR)
    ours, weights, told = alone(None, tmp_path / "ours", spec)
    assert ours.steps == 18
    assert ours.reproducible_why == ""
    assert ours.digest == alone(linear, tmp_path / "native", spec)[0].digest
    assert close(weights, rays_own("torch_linear_example:train_func", LINEAR))
    assert [step for step, values in told.values.items() if "reported/loss" in values] == [6, 12, 18]
    assert [file.name for file in sorted((tmp_path / "ours").glob("*.tar"))] == [
        f"ray-checkpoint-{step:012d}.tar" for step in (6, 12, 18)
    ]


@pytest.mark.parametrize("sync", ["ring", SERVERS], ids=["ring", "servers"])
def test_the_linear_example_keeps_its_bits_while_a_worker_dies_and_another_one_leaves(
    sync: Any, tmp_path: Path
) -> None:
    spec = job("torch_linear_example:train_func", LINEAR, sync)
    ours, _, _ = alone(None, tmp_path / "ours", spec)
    assert disturbed(None, 18, tmp_path, spec).digest == ours.digest


PARTED = {"intra_node": "parameter_server", "inter_node": "parameter_server"}
MODES = {
    "local_sgd": {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2},
    "async": PARTED | {"consistency": "async"},
    "ssp": PARTED | {"consistency": "ssp", "staleness": 1},
    "token_ring": {"intra_node": "token_ring", "inter_node": "token_ring"},
    "merged": {"reproducible": False},
}


@pytest.mark.parametrize("mode", MODES)
def test_the_linear_example_trains_in_every_mode_with_a_worker_killed(mode: str, tmp_path: Path) -> None:
    spec = job("torch_linear_example:train_func", LINEAR, MODES[mode])
    victim = "w3" if spec.sync.server_count else "w1"
    play = Cast(spec, None, FaultPlan().kill(victim, at_step=7), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {finished.steps for finished in play.finished.values()} == {18}


def quick(session: Session) -> None:
    """As `train_func_distributed` of Ray's quick start, for a session."""
    from ray.train.examples.pytorch import torch_quick_start as theirs

    rows = theirs.get_dataset()
    net = session.model(theirs.NeuralNetwork())
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.01))
    for _ in range(3):
        for x, y in session.batches(rows):
            session.step(F.cross_entropy(net(x), y))


def test_the_quick_start_ends_as_ray_does_and_keeps_its_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job("torch_quick_start:train_func_distributed", {}, batch={"global_size": 64, "logical_shards": 4})
    ours, weights, _ = alone(None, tmp_path / "ours", spec)
    assert ours.steps == 15
    assert ours.reproducible_why == ""
    assert ours.digest == alone(quick, tmp_path / "native", spec)[0].digest
    from ray.train.examples.pytorch import torch_quick_start as theirs

    nets: list[nn.Module] = []

    def kept(net: nn.Module) -> nn.Module:
        nets.append(net)
        return net

    own, loader = theirs.NeuralNetwork, theirs.DataLoader
    monkeypatch.setattr(theirs, "NeuralNetwork", lambda: kept(own()))
    in_order = lambda rows, batch_size, shuffle: loader(rows, batch_size, sampler=SessionOrder(len(rows)))  # noqa: E731
    monkeypatch.setattr(theirs, "DataLoader", in_order)
    rays_own("torch_quick_start:train_func_distributed", None)
    assert close(weights, nets[0].state_dict())
    assert disturbed(None, 15, tmp_path, spec).digest == ours.digest


REGRESSION = {"lr": 1e-2, "hidden_size": 20, "batch_size": BATCH, "epochs": 3}


def regression(batches: Any, session: Session | None = None) -> nn.Module:
    """As `train_func` of Ray's regression example, in plain torch or for a session."""
    net = nn.Sequential(nn.Linear(100, 20), nn.ReLU(), nn.Linear(20, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    if session is not None:
        session.model(net)
        session.optimizer(optimizer)
    for _ in range(3):
        for batch in batches():
            loss = F.l1_loss(net(batch["x"].float()), batch["y"].float())
            if session is not None:
                session.step(loss)
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def test_the_regression_example_reads_the_files_of_the_job_and_keeps_its_bits(tmp_path: Path) -> None:
    x = torch.randn(120, 100, generator=torch.Generator().manual_seed(2)).double()
    columns = {"x": x.tolist(), "y": x[:, :3].sum(1, keepdim=True).tolist()}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=32)
    file = str(tmp_path / "rows.parquet")
    spec = job(
        "torch_regression_example:train_func", REGRESSION, data={"sets": {"train": file, "validation": file}}
    )
    ours, weights, told = alone(None, tmp_path / "ours", spec)
    assert ours.steps == 24
    assert ours.reproducible_why == ""
    assert [step for step, values in told.values.items() if "reported/loss" in values] == [8, 16, 24]
    rows = ParquetDataset(file)

    def native(session: Session) -> None:
        regression(lambda: session.batches(rows, shuffle=False), session)

    assert ours.digest == alone(native, tmp_path / "native", spec)[0].digest
    seed_all(0, "init")
    assert close(weights, regression(lambda: DataLoader(rows, BATCH)).state_dict())
    assert disturbed(None, 24, tmp_path, spec).digest == ours.digest


def test_the_function_makes_the_same_where_its_lines_run_again(tmp_path: Path) -> None:
    spec = job("torch_linear_example:train_func", LINEAR)
    assert differing(spec, tmp_path) == []


def test_the_fashion_example_is_a_native_function_bit_for_bit_and_keeps_its_bits(tmp_path: Path) -> None:
    spec = job("torch_fashion_mnist_example:train_func_per_worker", FASHION)
    ours, _, told = alone(None, tmp_path / "ours", spec)
    assert ours.reproducible_why == ""
    assert ours.digest == alone(fashion, tmp_path / "native", spec)[0].digest
    assert [step for step, values in told.values.items() if "accuracy" in values] == [20, 40]
    assert disturbed(None, 40, tmp_path, spec).digest == ours.digest
