"""What is special on a CUDA device, as far as it can be seen without one."""

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from ringleader.checkpoint.pieces import put_together, take_apart
from ringleader.errors import StepMisuse
from ringleader.train.between_calls.boundaries import put_tensors
from ringleader.train.device.deterministic_kernels import DeterministicKernels
from ringleader.train.generation.context import MemberContext
from ringleader.train.local import local_session
from ringleader.train.state.kept_objects import _fits, _pairs
from ringleader.train.state.parameters.tensor_fingerprint import (
    COLUMNS,
    ROWS,
    _in_blocks,
    _sums,
    _sums_on_device,
)
from ringleader.train.state.training_state import TrainingState

ELSEWHERE = "meta"
"""A device that every machine has."""


class Kept:
    """An object that goes on with what it is given."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def test_a_kept_object_gets_tensors_on_the_device_of_its_own() -> None:
    held, own = TrainingState(), torch.empty(2, device=ELSEWHERE)
    held.kept["kept"] = kept = Kept({"mean": own, "parts": [own, 3], "count": torch.ones(())})
    held.kept.put({"kept": {"mean": torch.ones(2), "parts": [torch.ones(2), 4], "count": torch.ones(())}})
    assert [kept.values["mean"].device.type, kept.values["parts"][0].device.type] == [ELSEWHERE, ELSEWHERE]
    assert kept.values["parts"][1] == 4
    assert kept.values["count"].device.type == "cpu"


def test_a_kept_object_that_is_on_the_right_device_gets_the_state_itself() -> None:
    """What is in it twice is one object."""
    held, losses = TrainingState(), [1.0, 2.0]
    held.kept["kept"] = kept = Kept({"mean": torch.ones(2), "losses": [], "newest": []})
    held.kept.put({"kept": {"mean": torch.zeros(2), "losses": losses, "newest": losses}})
    assert kept.values["losses"] is kept.values["newest"] is losses


GROWN = {
    "a key": ({"mean": torch.ones(2), "best": 1.0}, {"mean": torch.ones(2)}),
    "an entry": ({"mean": torch.ones(2), "losses": [1.0, 2.0]}, {"mean": torch.ones(2), "losses": [1.0]}),
    "a dict": ({"mean": torch.ones(2), "best": {"loss": 1.0}}, {"mean": torch.ones(2), "best": None}),
    "a list": ({"mean": torch.ones(2), "losses": []}, {"mean": torch.ones(2), "losses": None}),
}


@pytest.mark.parametrize(("state", "before"), GROWN.values(), ids=GROWN)
def test_a_state_that_has_grown_is_not_written_over_its_earlier_copy(state: Any, before: Any) -> None:
    assert all(map(_fits, _pairs(before, before)))
    assert not all(map(_fits, _pairs(state, before)))


@pytest.mark.parametrize(("fused", "counted"), [(True, ELSEWHERE), (False, "cpu")])
def test_a_recorded_state_of_an_optimizer_comes_back_to_the_device_that_it_needs(
    *, fused: bool, counted: str
) -> None:
    held, net = TrainingState(), nn.Linear(3, 2, device=ELSEWHERE)
    held.models.append(net)
    held.add_optimizer(torch.optim.SGD(net.parameters(), lr=0.1), None)
    ((optimizer, _),) = held.optimizers
    optimizer.param_groups[0]["fused"] = fused
    recorded = {"step": torch.ones(()), "row_var": torch.ones(2, 1), "exp_avg": torch.ones(2, 3)}
    put_tensors(held, {"optimizers": [{0: recorded}]})
    state = optimizer.state[net.weight]
    devices = {name: value.device.type for name, value in state.items()}
    assert devices == {"step": counted, "row_var": ELSEWHERE, "exp_avg": ELSEWHERE}


def test_a_checkpoint_tells_which_tensors_lay_on_a_device() -> None:
    there, here = torch.empty(2, device=ELSEWHERE), torch.ones(3)
    skeleton, tensors = take_apart({"there": there, "here": here, "again": there}, devices=True)
    read = [torch.ones(tensor.shape) for tensor in tensors]
    back = put_together(skeleton, read, torch.device(ELSEWHERE))
    assert (back["there"].device.type, back["here"].device.type) == (ELSEWHERE, "cpu")
    assert back["again"] is back["there"]
    assert put_together(skeleton, read)["there"].device.type == "cpu"


def test_a_default_device_is_refused_at_a_session_call() -> None:
    spec = {"name": "j", "entrypoint": "m:f", "batch": {"global_size": 4, "logical_shards": 1}}
    with local_session(spec) as session:
        net = session.model(nn.Linear(2, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        torch.set_default_device(ELSEWHERE)
        try:
            with pytest.raises(StepMisuse, match="default device is meta"):
                next(iter(session.batches([1, 2, 3, 4])))
        finally:
            torch.set_default_device(None)


def test_fingerprints_of_blocks_are_those_of_the_whole_taken_at_once() -> None:
    """A device sums all blocks at once."""
    words = torch.randint(-(2**62), 2**62, (2 * ROWS + 7, COLUMNS))
    one_by_one = [(rows.tolist(), columns.tolist()) for rows, columns in _sums(words)]
    at_once = [(rows.tolist(), columns.tolist()) for rows, columns in _in_blocks(*_sums_on_device(words))]
    assert at_once == one_by_one


@pytest.fixture
def kernels() -> Iterator[DeterministicKernels]:
    """Of a member on a CUDA device."""
    context = SimpleNamespace(same_bits=True, device=torch.device("cuda"), current=None)
    chosen = DeterministicKernels(cast(MemberContext, context))
    chosen.begin()
    yield chosen
    chosen.end()
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_an_order_is_named_whatever_the_program_silences(
    kernels: DeterministicKernels,
) -> None:
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert kernels.found.why_other_bits == ""
    warnings.filterwarnings("ignore")
    kernels.begin_turn()
    warnings.warn("put_ does not have a deterministic implementation, but you set …", stacklevel=1)
    warnings.warn("Flash Attention defaults to a non-deterministic algorithm. To …", stacklevel=1)
    kernels.end_turn()
    assert "Flash Attention, put_" in kernels.found.why_other_bits


@pytest.mark.parametrize(
    ("silenced", "named"), [("benchmark", "convolutions"), ("off", "all operations")], ids=str
)
def test_a_mode_of_the_program_is_named(kernels: DeterministicKernels, silenced: str, named: str) -> None:
    before = torch.backends.cudnn.benchmark
    if silenced == "benchmark":
        torch.backends.cudnn.benchmark = True
    else:
        torch.use_deterministic_algorithms(False)
    try:
        kernels.end_turn()
    finally:
        torch.backends.cudnn.benchmark = before
    assert named in kernels.found.why_other_bits


def test_findings_outlive_the_member(kernels: DeterministicKernels) -> None:
    kernels.found.restore(["put_"])
    assert kernels.found.state() == ["put_"]
