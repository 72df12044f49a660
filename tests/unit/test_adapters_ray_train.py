"""What a function of Ray Train means on a session, and what is refused, by name and with what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ringleader.errors import RingleaderError, SpecInvalid, StepMisuse
from ringleader.spec import JobSpec
from ringleader.train.local import RecordedOutput, local_session, run_local
from ringleader.train.run import WorkerResult, function_of

POINTS = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
ROWS = TensorDataset(POINTS, POINTS.sum(1, keepdim=True))
Parts = tuple[nn.Module, torch.optim.Optimizer, Any]


def spec(function: Callable[..., Any], **more: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "adopted",
            "entrypoint": f"{__name__}:{function.__name__}",
            "framework": "ray_train",
            "batch": {"global_size": 8, "logical_shards": 2},
            "workers": {"max": 2},
            "checkpoint": {"every_steps": None},
        }
        | more
    )


def ran(function: Callable[..., Any], folder: Path, **more: Any) -> tuple[WorkerResult, RecordedOutput]:
    job = spec(function, **more)
    return run_local(job, function_of(job), folder)


def prepared(rate: float = 0.1, **options: Any) -> Parts:
    import ray.train.torch

    net = ray.train.torch.prepare_model(nn.Linear(3, 1))
    loader = ray.train.torch.prepare_data_loader(DataLoader(ROWS, 8, **options))
    return net, torch.optim.SGD(net.parameters(), lr=rate), loader


def loss_of(net: nn.Module, batch: Any) -> Tensor:
    return (net(batch[0]) - batch[1]).square().mean()


# --- what it means ----------------------------------------------------------------------------------------------------


def world(config: dict[str, Any]) -> None:
    import ray.train

    context = ray.train.get_context()
    assert (context.get_world_size(), context.get_world_rank(), context.get_local_rank()) == (1, 0, 0)
    assert context.get_experiment_name() == "adopted"
    assert ray.train.get_checkpoint() is None
    assert ray.train.torch.get_device() == torch.device("cpu")
    net, optimizer, loader = prepared()
    assert net.module is net
    assert list(net.state_dict()) == ["weight", "bias"]
    assert len(loader) == 4
    for batch in loader:
        assert len(batch[0]) == 4
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
    loader.sampler.set_epoch(1)
    net.eval()
    with torch.no_grad():
        assert [len(batch[0]) for batch in loader] == [8] * 4
    ray.train.report({"rate": config["rate"], "loss": 2.0, "text": "left out"})


def test_the_function_is_alone_in_its_world_and_its_loader_has_the_jobs_batches(tmp_path: Path) -> None:
    result, told = ran(world, tmp_path, params={"rate": 0.5})
    assert result.steps == 4
    assert (told.values[4]["rate"], told.values[4]["reported/loss"]) == (0.5, 2.0)
    assert told.values[4]["loss"] != 2.0
    assert "text" in next(data["message"] for kind, data in told.events if kind == "warning")


def by_steps() -> None:
    net, optimizer, loader = prepared()
    schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    by_epoch = StepLR(optimizer, 1)
    del by_epoch
    for batch in loader:
        net.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.1 / 5])


def by_epochs() -> None:
    net, optimizer, loader = prepared()
    schedule = StepLR(optimizer, 1, 0.5)
    for _ in range(3):
        for batch in loader:
            loss_of(net, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
    assert schedule.get_last_lr() == [0.1 / 8]


@pytest.mark.parametrize(("function", "last"), [(by_steps, 0.1 / 4), (by_epochs, 0.1 / 4)])
def test_a_schedule_advances_where_the_function_steps_it(
    function: Callable[[], None], last: float, tmp_path: Path
) -> None:
    _, told = ran(function, tmp_path)
    assert max(told.values.items())[1]["lr"] == pytest.approx(last)


def plain(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        for batch in DataLoader(ROWS, 8):
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()


def twice() -> None:
    net, optimizer, loader = prepared()
    before = nn.Linear(3, 1)
    before.load_state_dict(net.state_dict())
    net.eval()  # a loop trains where its body has a backward, whatever the mode
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
    torch.save({"before": before.state_dict(), "after": net.state_dict()}, "weights.pt")


def test_the_weights_are_those_of_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran(twice, tmp_path)
    weights = torch.load("weights.pt")
    net = nn.Linear(3, 1)
    net.load_state_dict(weights["before"])
    plain(net, torch.optim.SGD(net.parameters(), lr=0.1))
    # The slices of a step are added up, where torch takes all rows at once.
    assert torch.allclose(net.weight, weights["after"]["weight"], rtol=1e-6, atol=1e-6)


def reporting() -> None:
    import tempfile

    import ray.train

    net, optimizer, loader = prepared()
    for epoch in range(3):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(net, batch).backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "epoch.txt").write_text(str(epoch))
            ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def test_the_newest_reported_checkpoints_are_artifacts(tmp_path: Path) -> None:
    ran(reporting, tmp_path, checkpoint={"every_steps": None, "keep": 2})
    kept = sorted(file.name for file in tmp_path.iterdir() if "ray" in file.name)
    assert kept == ["ray-checkpoint-000000000008.tar", "ray-checkpoint-000000000012.tar"]


def test_a_session_without_artifacts_says_that_it_keeps_no_checkpoint() -> None:
    job = spec(reporting)
    with local_session(job) as session:
        function_of(job)(session)
        events = session._sink.events  # type: ignore[attr-defined]
    assert any("no folder to keep it in" in data["message"] for kind, data in events if kind == "warning")


def from_files(config: dict[str, Any]) -> None:
    import ray.train
    import ray.train.torch

    shard, other = ray.train.get_dataset_shard("train"), ray.train.get_dataset_shard("validation")
    net = ray.train.torch.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def batches(of: Any) -> Any:
        for batch in of.iter_torch_batches(batch_size=8, dtypes=torch.float32):
            yield batch["x"], batch["y"]

    for _ in range(2):
        rows = batches(shard)
        net.train()
        for x, y in rows:
            optimizer.zero_grad()
            (net(x)[:, 0] - y).square().mean().backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            sizes = [len(x) for x, _ in batches(other)]
        ray.train.report({"rows": sum(sizes), "batches": len(sizes)})


def test_shards_are_the_files_that_the_job_file_names(tmp_path: Path) -> None:
    values = {"x": POINTS.double().tolist(), "y": POINTS.double().sum(1).tolist()}
    pyarrow.parquet.write_table(pa.table(values), tmp_path / "rows.parquet")
    sets = {"train": str(tmp_path / "rows.parquet"), "validation": str(tmp_path / "rows.parquet")}
    result, told = ran(from_files, tmp_path, data={"sets": sets})
    assert result.steps == 8
    assert result.reproducible_why == ""
    assert (told.values[8]["rows"], told.values[8]["batches"]) == (32, 4)
    with pytest.raises(
        StepMisuse, match=r"'train'\) of a data set that the job file does not name.*data: \{sets"
    ):
        ran(from_files, tmp_path)


# --- what is refused --------------------------------------------------------------------------------------------------


def two_backwards_in_a_helper() -> None:
    net, optimizer, loader = prepared()

    def learn(loss: Tensor) -> None:
        loss.backward()

    for batch in loader:
        optimizer.zero_grad()
        learn(loss_of(net, batch))
        learn(loss_of(net, batch))
        optimizer.step()


def never_cleared() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        loss_of(net, batch).backward()
        optimizer.step()


def cleared_too_late() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        loss_of(net, batch).backward()
        optimizer.zero_grad()
        optimizer.step()


def accumulated() -> None:
    net, optimizer, loader = prepared()
    for number, batch in enumerate(loader):
        loss_of(net, batch).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def never_stepped() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()


def stepped_first() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.step()
        optimizer.zero_grad()
        loss_of(net, batch).backward()


def without_prepared_rows() -> None:
    net, optimizer, _ = prepared()
    for batch in DataLoader(ROWS, 8):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()


def without_an_optimizer() -> None:
    import ray.train.torch

    net = ray.train.torch.prepare_model(nn.Linear(3, 1))
    for batch in ray.train.torch.prepare_data_loader(DataLoader(ROWS, 8)):
        loss_of(net, batch).backward()


def with_an_argument() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward(retain_graph=True)
        optimizer.step()


def clipped_by_hand() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        for p in net.parameters():
            p.grad.clamp_(-1, 1)
        optimizer.step()


def clamp(net: nn.Module) -> None:
    for p in net.parameters():
        p.grad.clamp_(-1, 1)


def clipped_by_hand_in_a_helper() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        clamp(net)
        optimizer.step()


def scheduled_sometimes() -> None:
    net, optimizer, loader = prepared()
    schedule = StepLR(optimizer, 1)
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()
        if batch[0].sum() > 0:
            schedule.step()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(ROWS)


def streamed() -> None:
    import ray.train.torch

    ray.train.torch.prepare_data_loader(DataLoader(Stream(), 8))


def of_another_size() -> None:
    import ray.train.torch

    net, optimizer, _ = prepared()
    for batch in ray.train.torch.prepare_data_loader(DataLoader(ROWS, 16)):
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()


def told_in_a_helper() -> None:
    import ray.train

    def tell(value: float) -> None:
        ray.train.report({"value": value})

    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(net, batch)
        loss.backward()
        optimizer.step()
        tell(loss.item())


def stored() -> None:
    import ray.train

    ray.train.get_context().get_storage()


def clipped(config: dict[str, Any]) -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), config["norm"])
        optimizer.step()
    assert norm > config["norm"]


def clipped_for_a_session(session: Any) -> None:
    net = session.model(nn.Linear(3, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1), clip_norm=0.01)
    for batch in session.batches(ROWS, shuffle=False):
        session.step(loss_of(net, batch))


def not_clipped() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        optimizer.step()


def test_a_norm_is_bounded_by_the_session_as_the_function_does_it(tmp_path: Path) -> None:
    ours, _ = ran(clipped, tmp_path, params={"norm": 0.01})
    native, _ = ran(clipped_for_a_session, tmp_path, framework="native")
    assert ours.digest == native.digest
    assert ours.digest != ran(not_clipped, tmp_path)[0].digest


def clipped_in_part() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        nn.utils.clip_grad_norm_([net.weight], 1.0)
        optimizer.step()


def clipped_sometimes() -> None:
    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        if batch[0].sum() > 0:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def clipped_in_a_helper() -> None:
    def update(net: nn.Module) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    net, optimizer, loader = prepared()
    for batch in loader:
        optimizer.zero_grad()
        loss_of(net, batch).backward()
        update(net)
        optimizer.step()


REFUSED = [
    (clipped_in_part, r"clip_grad_norm_\(\[net\.weight\], 1\.0\) cannot be kept"),
    (clipped_sometimes, r"clip_grad_norm_\(net\.parameters\(\), 1\.0\) cannot be kept"),
    (clipped_in_a_helper, r"clip_grad_norm_\(…, 1\) where the loop began with None"),
    (two_backwards_in_a_helper, r"a second backward\(\) in one turn"),
    (never_cleared, r"never calls zero_grad\(\)"),
    (cleared_too_late, r"zero_grad\(\) between backward\(\) and optimizer\.step\(\)"),
    (accumulated, r"SGD\.step\(\) under a condition"),
    (never_stepped, r"a turn without a step of SGD.*raise batch\.global_size instead of accumulating"),
    (stepped_first, r"optimizer\.step\(\) before loss\.backward\(\)"),
    (without_prepared_rows, r"backward\(\) outside of a loop over a prepared loader"),
    (without_an_optimizer, r"without an optimizer of the prepared model's parameters"),
    (with_an_argument, r"backward\(\) with arguments"),
    (clipped_by_hand, r"p\.grad: no worker has the whole gradient"),
    (
        clipped_by_hand_in_a_helper,
        r"was read or changed .*p\.grad\.clamp_.*clip_grad_norm_\(model\.parameters\(\)",
    ),
    (scheduled_sometimes, r"StepLR\.step\(\) under a condition"),
    (streamed, r"an IterableDataset, whose rows have no positions"),
    (of_another_size, r"16 rows.*batch\.global_size is 8"),
    (told_in_a_helper, r"ray\.train\.report in a training loop"),
    (stored, r"get_storage\(\) cannot be kept.*Report checkpoints"),
]


@pytest.mark.parametrize(("function", "told"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_a_session_cannot_keep_is_refused_by_name(
    function: Callable[[], None], told: str, tmp_path: Path
) -> None:
    with pytest.raises(RingleaderError, match=told):
        ran(function, tmp_path)


def test_torchs_own_methods_are_back_behind_the_function(tmp_path: Path) -> None:
    before = Tensor.backward, nn.Module.zero_grad, torch.optim.Optimizer.__init__, torch.autograd.backward
    with pytest.raises(StepMisuse):
        ran(never_stepped, tmp_path)
    assert before == (
        Tensor.backward,
        nn.Module.zero_grad,
        torch.optim.Optimizer.__init__,
        torch.autograd.backward,
    )


def test_an_example_of_torchft_is_refused_before_it_is_imported() -> None:
    entrypoint = "ray.train.v2.examples.pytorch.torchft_linear_example:train_func"
    job = JobSpec.parse({"name": "adopted", "entrypoint": entrypoint, "framework": "auto"})
    with pytest.raises(
        SpecInvalid, match=r"ray_train_hosted, which would.*torchft brings a loop or a process group"
    ):
        function_of(job)
