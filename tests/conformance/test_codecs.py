"""Every registered codec: exact sizes, zeros, what is not finite, bounded loss, and the same bits for every reader."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from ringleader.comm.codecs import CODECS, NAMES, RAW, Codec
from ringleader.spec.sync import Codec as Named

ALL = [RAW, *CODECS.values()]
FEEDBACK = [codec for codec in ALL if codec.feedback]
LENGTHS = [0, 1, 3, 7, 255, 256, 1024, 1025, 10_007]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return str(request.param)


def values_of(length: int, device: str = "cpu") -> Tensor:
    """Gradients of many magnitudes, signs mixed."""
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(length, generator=generator)
    return (x * torch.logspace(-4, 2, max(1, length))[:length]).to(device)


def encoded(codec: Codec, values: Tensor) -> Tensor:
    message = torch.zeros(codec.size(values.numel()), dtype=torch.uint8, device=values.device)
    codec.encode(values, message)
    return message


def through(codec: Codec, values: Tensor) -> Tensor:
    out = torch.full_like(values, torch.nan)
    codec.decode(encoded(codec, values), out)
    return out


def test_the_job_file_names_every_codec() -> None:
    assert set(get_args(Named)) == {RAW.name, *NAMES}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("codec", ALL, ids=lambda c: c.name)
def test_a_message_fills_its_size_and_nothing_beside_it(codec: Codec, length: int, device: str) -> None:
    values, size = values_of(length, device), codec.size(length)
    for canary in (0, 255):
        memory = torch.full((size + 8,), canary, dtype=torch.uint8, device=device)
        codec.encode(values, memory[4 : 4 + size])
        assert (memory[:4] == canary).all()
        assert (memory[4 + size :] == canary).all()
        # Whatever lay there before: every byte is written.
        assert torch.equal(memory[4 : 4 + size], encoded(codec, values))


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.name)
def test_a_coded_gradient_is_half_as_long_at_most(codec: Codec) -> None:
    assert codec.size(1 << 20) <= 2 << 20


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("codec", ALL, ids=lambda c: c.name)
def test_the_loss_is_bounded(codec: Codec, length: int, device: str) -> None:
    values = values_of(length, device)
    lost = values - through(codec, values)
    if codec.feedback:
        # A contraction: what is owed cannot grow without bound. The margin is for the rounding of float32 sums.
        assert lost.norm() <= values.norm() * (1 + 1e-6)
    else:
        # Eight significant bits or more; fp16 rounds to multiples of 2^-24 near zero.
        assert (lost.abs() <= values.abs() * 2**-8 + 2**-25).all()


@pytest.mark.parametrize("codec", FEEDBACK, ids=lambda c: c.name)
def test_with_feedback_everything_arrives(codec: Codec) -> None:
    values, steps = values_of(2000), 1000
    owed, arrived = torch.zeros_like(values), torch.zeros_like(values)
    for _ in range(steps):
        wanted = values + owed
        got = through(codec, wanted)
        owed = wanted - got
        arrived += got
    # What is owed stays as long as one gradient times the steps between two sends of a value (100 for top-k, with
    # as much again for those that grow meanwhile); it does not grow with the number of steps.
    assert owed.norm() <= 200 * values.norm()
    assert torch.allclose(arrived + owed, steps * values, rtol=1e-4, atol=1e-3 * float(values.abs().max()))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("codec", ALL, ids=lambda c: c.name)
def test_zeros_stay_zeros(codec: Codec, length: int, device: str) -> None:
    zeros = torch.zeros(length, device=device)
    assert torch.equal(through(codec, zeros), zeros)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("codec", ALL, ids=lambda c: c.name)
def test_what_is_not_finite_is_never_hidden(codec: Codec, bad: float, device: str) -> None:
    for place in (0, 1500, 1999):
        values = values_of(2000, device)
        values[place] = bad
        assert not through(codec, values).isfinite().all()


@pytest.mark.parametrize("codec", ALL, ids=lambda c: c.name)
@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e5, 1e35])
def test_what_is_finite_stays_finite(codec: Codec, scale: float, device: str) -> None:
    values = values_of(2000, device).sign() * scale
    assert through(codec, values).isfinite().all()


@pytest.mark.parametrize("codec", ALL, ids=lambda c: c.name)
def test_all_readers_of_a_message_get_the_same_bits(codec: Codec) -> None:
    values = values_of(10_007)
    message, first = encoded(codec, values), through(codec, values)
    # Another place in memory, another alignment of vector loads.
    memory = torch.empty(message.numel() + 4, dtype=torch.uint8)
    memory[4:] = message
    out = torch.empty(10_008)[1:]
    codec.decode(memory[4:], out)
    assert torch.equal(out, first)
