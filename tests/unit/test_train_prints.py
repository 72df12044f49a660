"""Fingerprints of a worker's state: equal where all bits are, and nowhere else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ringleader.train.generation.joining.donor import _same
from ringleader.train.state.fingerprints import first_difference, prints
from ringleader.train.state.parameters.tensor_fingerprint import COLUMNS, ROWS, WHOLE_BYTES, fingerprint
from ringleader.train.state.training_state import TrainingState

LARGE = 3 * COLUMNS * ROWS + 5 * COLUMNS + 7
"""Words: whole blocks, a part of one, and a rest."""


def halves(value: Tensor) -> Tensor:
    return torch.cat(value.chunk(2)[::-1])


def flipped(at: int, mask: int = 1) -> Callable[[Tensor], Tensor]:
    """One byte is another one."""

    def change(value: Tensor) -> Tensor:
        other = value.clone()
        other.view(torch.uint8)[at] ^= mask
        return other

    return change


def two_words(value: Tensor) -> Tensor:
    """They change places within a row, which keeps its sum."""
    other = value.clone()
    words = other.view(torch.int64)
    words[3], words[7] = words[7].clone(), words[3].clone()
    return other


def two_rows(value: Tensor) -> Tensor:
    """They change places within a block, whose columns keep their sums."""
    other = value.clone()
    rows = other.view(torch.int64)[: 2 * COLUMNS].view(2, COLUMNS)
    rows.copy_(rows.flip(0))
    return other


def signs_of_whole_blocks(value: Tensor) -> Tensor:
    """The highest bit of each of their words is another one."""
    other = value.clone()
    other.view(torch.int64)[: 2 * COLUMNS * ROWS].bitwise_xor_(-(2**63))
    return other


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "first bit": flipped(0),
    "sign of the last": flipped(-1, 0x80),
    "in the middle": flipped(500_003, 4),
    "negated": torch.neg,
    "reversed": lambda value: value.flip(0),
    "neighbours": lambda value: value[: value.numel() // 2 * 2].view(-1, 2).flip(1).reshape(-1),
    "halves": halves,
    "moved by one": lambda value: value.roll(1),
    "two words": two_words,
    "two rows": two_rows,
    "signs of whole blocks": signs_of_whole_blocks,
    "rows of words": lambda value: value.roll(COLUMNS),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_is_changed_in_a_large_tensor_shows(change: Callable[[Tensor], Tensor], dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    value = (torch.randn(LARGE * 8 // dtype.itemsize, generator=generator) * 1000).to(dtype)
    changed = change(value)
    assert not torch.equal(changed, value)
    assert fingerprint(changed) != fingerprint(value[: changed.numel()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equal_values_that_are_all_negated_show(dtype: torch.dtype):
    ones = torch.ones(LARGE, dtype=dtype)
    signs = ones.clone()
    signs[1::2] = -1
    assert len({fingerprint(value) for value in (ones, -ones, signs, -signs)}) == 4


def test_bits_count_and_not_values():
    for size in (3, WHOLE_BYTES):
        quiet, other = torch.full((size,), float("nan")), torch.full((size,), float("nan"))
        assert fingerprint(quiet) == fingerprint(other)
        other.view(torch.int32)[1] ^= 1
        assert fingerprint(quiet) != fingerprint(other)
        assert fingerprint(torch.zeros(size)) != fingerprint(-torch.zeros(size))


def test_neither_strides_nor_the_place_in_memory_count():
    value = torch.randn(64, 8, 33, 3, generator=torch.Generator().manual_seed(0))
    memory = torch.zeros(value.numel() + 1)
    shifted = memory[1:].view_as(value).copy_(value)
    assert len({fingerprint(v) for v in (value, shifted, value.to(memory_format=torch.channels_last))}) == 1


def test_type_and_shape_count():
    value = torch.zeros(6)
    assert len({fingerprint(v) for v in (value, value.view(2, 3), value.int(), torch.zeros(0))}) == 4


def holding(*, decay: float = 0.5) -> TrainingState:
    """A network with tied weights, and Adam behind a step."""
    first, second, norm = nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)
    net, held = nn.Sequential(first, second, norm), TrainingState()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.fill_(number)
    second.weight = first.weight
    held.models = [net]
    held.optimizers = [(torch.optim.Adam(net.parameters()), None)]
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, decay)
    held.update()
    return held


def state_of(held: TrainingState, name: str) -> Any:
    return held.optimizers[0][0].state[dict(held.models[0].named_parameters())[name]]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda held: held.models[0][2].weight.data.mul_(2), "2.weight"),
        (lambda held: held.models[0][2].running_var.zero_(), "2.running_var"),
        (lambda held: state_of(held, "1.bias")["exp_avg"].neg_(), "optimizer 0's state of 1.bias"),
        (lambda held: state_of(held, "1.bias").update(age=1), "optimizer 0's state of 1.bias"),
        (lambda held: held.optimizers[0][0].state.clear(), "optimizer 0's state of 0.weight"),
        (lambda _: None, ""),
    ],
    ids=["weight", "buffer", "state", "number", "missing", "nothing"],
)
def test_the_first_difference_has_the_name_that_people_know(
    change: Callable[[TrainingState], object], what: str
):
    theirs, mine = holding(), holding()
    change(mine)
    assert first_difference(prints(mine, {}), prints(theirs, {})) == what
    assert first_difference(prints(theirs, {}), prints(mine, {})) == what


def test_kept_objects_count_with_all_that_they_hold():
    held, state = holding(), {"mean": [torch.ones(3)], "updates": 7}
    moved = {"mean": [torch.ones(3) * 2], "updates": 7}
    later = {"mean": [torch.ones(3)], "updates": 8}
    for other in (moved, later, {"mean": []}):
        mine, theirs = prints(held, {"ema": other}), prints(held, {"ema": state})
        assert first_difference(mine, theirs) == "kept object 'ema'"


class LiveCopies(TorchDispatchMode):
    """Counts the copies whose memory is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[StorageWeakRef] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.clone.default:
            self.made.append(StorageWeakRef(made.untyped_storage()))
            self.most = max(self.most, sum(not each.expired() for each in self.made))
        return made


def test_complex_weights_and_their_moments_count_by_their_bits() -> None:
    def trained(turn: complex) -> TrainingState:
        held = TrainingState()
        net = nn.Module()
        net.weight = nn.Parameter(torch.ones(5, dtype=torch.complex64))
        held.models.append(net)
        optimizer = torch.optim.Adam(net.parameters())
        held.add_optimizer(optimizer, None)
        net.weight.grad = torch.full((5,), turn, dtype=torch.complex64)
        optimizer.step()
        return held

    one, same, other = (prints(trained(turn), {}, optimizers=True) for turn in (1 + 1j, 1 + 1j, 1 - 1j))
    assert first_difference(one, same) == ""
    assert first_difference(one, other) != ""
    value = torch.tensor([1 + 2j, 3 - 1j])
    assert fingerprint(value.conj()) == fingerprint(value.conj().resolve_conj()) != fingerprint(value)


def test_a_donor_compares_what_a_kept_object_has_conjugated() -> None:
    value = torch.tensor([1 + 2j, 3 - 1j])
    assert _same({"wave": value.conj()}, {"wave": value.conj().resolve_conj()})
    assert not _same({"wave": value.conj()}, {"wave": value})
    assert _same({"part": value.conj().imag}, {"part": -value.imag.clone()})


def test_weights_in_another_order_of_memory_are_copied_one_at_a_time() -> None:
    held = TrainingState()
    layers = [nn.Conv2d(8, 8, 3) for _ in range(4)]
    held.models.append(nn.Sequential(*layers).to(memory_format=torch.channels_last))
    with LiveCopies() as copies:
        prints(held, {})
    assert copies.most == 1
