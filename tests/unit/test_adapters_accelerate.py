"""What an `ElasticAccelerator` refuses, by name and with what to write instead, and what it means for a loop."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from ringleader.errors import StepMisuse
from ringleader.train import Session, local_session

pytest.importorskip("accelerate", reason="accelerate is not installed: pip install -e .[accelerate]")

from accelerate.utils import DataLoaderConfiguration

from ringleader.adapters.accelerate import ElasticAccelerator

SPEC = {
    "name": "refused",
    "entrypoint": "refused:train",
    "batch": {"global_size": 8, "logical_shards": 2},
    "workers": {"max": 2},
}
ROWS = TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.ones(24, 1))


@pytest.fixture
def session() -> Iterator[Session]:
    with local_session(SPEC) as opened:
        yield opened


def prepared(session: Session, **options: Any) -> tuple[Any, ...]:
    accelerator = ElasticAccelerator(session, **options)
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return accelerator, *accelerator.prepare(net, optimizer, DataLoader(ROWS, 4, shuffle=True))


def loss_of(net: nn.Module, batch: Any) -> torch.Tensor:
    return (net(batch[0]) - batch[1]).square().mean()


def test_a_step_takes_a_batch_of_every_shard_and_sync_gradients_says_when(session: Session) -> None:
    accelerator, net, optimizer, loader = prepared(session)
    assert accelerator.num_processes == 2
    assert len(loader) == 3
    synced = []
    for batch in loader:
        assert len(batch[0]) == 4
        accelerator.backward(loss_of(net, batch))
        optimizer.step()
        synced.append(accelerator.sync_gradients)
    assert synced == [False, True] * 3
    assert session.global_step == 3


def test_a_schedule_advances_once_for_each_process_as_accelerates_do(session: Session) -> None:
    accelerator, net, optimizer, loader = prepared(session)
    schedule = accelerator.prepare(LambdaLR(optimizer, lambda step: 1.0 / (1 + step)))
    for batch in loader:
        accelerator.backward(loss_of(net, batch))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert schedule.get_last_lr() == [0.1 * (1.0 / 7)]


def test_a_batch_size_that_is_not_the_jobs_is_refused_with_both_numbers(session: Session) -> None:
    accelerator, _, _, _ = prepared(session)
    loader = accelerator.prepare(DataLoader(ROWS, 8, shuffle=True))
    with pytest.raises(
        StepMisuse, match=r"16 rows \(batch size 8 × accumulation 1 × 2 logical shards\).* is 8"
    ):
        next(iter(loader))


def test_batches_that_are_split_are_those_of_all_processes(session: Session) -> None:
    accelerator, net, _, _ = prepared(session, dataloader_config=DataLoaderConfiguration(split_batches=True))
    for batch in accelerator.prepare(DataLoader(ROWS, 8)):
        accelerator.backward(loss_of(net, batch))
    assert session.global_step == 3


def test_gradients_of_inputs_and_of_other_models_are_the_loops_own(session: Session) -> None:
    accelerator, net, optimizer, loader = prepared(session)
    other = nn.Linear(3, 1)
    for batch in loader:
        batch[0].requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(net, batch), batch[0])
        loss_of(other, batch).backward()
        for weight in other.parameters():
            weight.data -= 0.1 * weight.grad
        torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        other.zero_grad()
        accelerator.backward(loss_of(net, batch) + slope.abs().mean())
        optimizer.step()
    assert session.global_step == 3


def test_accumulated_batches_are_one_turns_rows() -> None:
    with local_session(SPEC | {"batch": {"global_size": 16, "logical_shards": 2}}) as session:
        accelerator, net, _, loader = prepared(session, gradient_accumulation_steps=2)
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(loss_of(net, batch))
        assert session.global_step == 2


def reads_a_gradient(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        accelerator.backward(loss_of(net, batch))
        print(net.weight.grad.norm())


def clips_by_torch(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        accelerator.backward(loss_of(net, batch))
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def changes_gradients(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        accelerator.backward(loss_of(net, batch))
        for weight in net.parameters():
            weight.grad.mul_(0.5)


def clips_undeclared(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        accelerator.backward(loss_of(net, batch))
        accelerator.clip_grad_norm_(net.parameters(), 1.0)


def clips_other_parameters_later(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    accelerator.clip_norm = 1.0  # as it is declared at the top
    for turn, batch in enumerate(loader):
        accelerator.backward(loss_of(net, batch))
        accelerator.clip_grad_norm_(net.parameters() if turn < 2 else [net.weight], 1.0)


def clips_values(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    accelerator.clip_grad_value_(net.parameters(), 1.0)


def gathers_in_training(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        accelerator.gather(loss_of(net, batch))


def logs_behind_backward(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    for batch in loader:
        loss = loss_of(net, batch)
        accelerator.backward(loss)
        accelerator.log({"train_loss": loss.item()})


def steps_first(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    for _ in loader:
        optimizer.step()


def trains_in_evaluation_mode(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    net.eval()
    for batch in loader:
        accelerator.backward(loss_of(net, batch))


def saves_its_state(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    accelerator.save_state("there")


def skips_batches(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    accelerator.skip_first_batches(loader, 2)


def weighs_rows(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    accelerator.prepare(DataLoader(ROWS, 4, sampler=WeightedRandomSampler([1.0] * 24, 24)))


def steps_a_schedule_between_loops(accelerator: Any, net: Any, optimizer: Any, loader: Any) -> None:
    accelerator.prepare(LambdaLR(optimizer, lambda _: 1.0)).step()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            reads_a_gradient,
            r"'weight' was read or changed .*test_adapters_accelerate.py:\d+: print.*ElasticAccelerator\(session, clip",
        ),
        (
            clips_by_torch,
            r"was read or changed .*torch.nn.utils.clip_grad_norm_.*ElasticAccelerator\(session, clip_norm",
        ),
        (changes_gradients, r"was read or changed .*weight\.grad\.mul_"),
        (clips_undeclared, r"no clip_norm is declared .*ElasticAccelerator\(session, clip_norm=1\)"),
        (clips_other_parameters_later, "other parameters than those of one prepared optimizer"),
        (clips_values, "register_hook"),
        (gathers_in_training, r"gather in a training loop .*accelerator\.log"),
        (logs_behind_backward, "before accelerator.backward"),
        (steps_first, r"optimizer\.step\(\) before backward"),
        (trains_in_evaluation_mode, r"model\.train\(\) before the loop"),
        (saves_its_state, r"checkpoint: \{every_steps: 500\}"),
        (skips_batches, "goes on at the step where it was"),
        (weighs_rows, r"WeightedRandomSampler.*Subset"),
        (steps_a_schedule_between_loops, "step_scheduler_with_optimizer=False"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_kept_is_refused_with_what_to_write(
    session: Session, program: Callable[..., None], says: str
) -> None:
    with pytest.raises(StepMisuse, match=says):
        program(*prepared(session))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("mixed_precision", "precision: bf16"),
        ("log_with", "MLflow"),
        ("fsdp_plugin", "Leave it out"),
    ],
)
def test_options_that_a_session_has_itself_are_refused(session: Session, option: str, says: str) -> None:
    with pytest.raises(StepMisuse, match=says):
        ElasticAccelerator(session, **{option: "bf16"})


def test_what_is_logged_before_backward_is_the_mean_over_all_rows(session: Session) -> None:
    accelerator, net, _, loader = prepared(session)
    for batch in loader:
        accelerator.log({"largest": batch[0].max()})
        accelerator.backward(loss_of(net, batch))
    assert session._steps.turns.names == ("largest",)
