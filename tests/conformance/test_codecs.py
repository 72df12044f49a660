"""Every registered codec: exact sizes, zeros, what is not finite, bounded loss, and the same bits for every reader.

First the messages of those that encode single messages; then, of all that a job file may name, the sums of several
members: PowerSGD is a way of summing and has no messages to decode.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pkgutil import iter_modules
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from ringleader.comm import codecs
from ringleader.comm.buckets import Buckets
from ringleader.comm.codecs import CODECS, NAMES, POWERSGD, RAW, Codec
from ringleader.comm.codecs.narrow import BF16, FP16
from ringleader.comm.executor import Scratch
from ringleader.comm.transports.inprocess import Hub
from ringleader.exchange import Coding
from ringleader.exchange.coded_sums import CodedSums
from ringleader.spec.sync_keys import Codec as Named

ALL = [RAW, *CODECS.values()]
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


BESIDE = {"codec", "messages", "registry"}
"""Files of the package that are no codec of the job file."""
NARROW = {BF16.name, FP16.name}


def test_every_codec_of_the_package_is_registered() -> None:
    files = {module.name for module in iter_modules(codecs.__path__)} - BESIDE
    assert files == set(NAMES) - NARROW | {"narrow"}


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


WORLD, SHAPE = 3, (128, 160)
OWING = [name for name in NAMES if name == POWERSGD or CODECS[name].feedback]


@dataclass
class Summed:
    """What members have after their sums.

    Attributes:
        results: (steps, *SHAPE) of each member.
        owed: SHAPE, of each.
        counted, sent: bytes of each, as it counts them and as they crossed the transport.
    """

    results: list[Tensor]
    owed: list[Tensor]
    counted: list[int]
    sent: list[int]

    @property
    def total(self) -> Tensor:
        """SHAPE: all sums of all steps."""
        return self.results[0].sum(dim=0)


def summed(codec: str, steps: Sequence[Tensor]) -> Summed:
    """Members' coded sums, one after the other. `steps`: (WORLD, *SHAPE) each, the gradient of each member."""
    hub, codings = Hub(WORLD), [Coding(codec, ["matrix"]) for _ in range(WORLD)]

    def one(rank: int) -> Tensor:
        buckets = Buckets([nn.Parameter(torch.zeros(SHAPE, device=steps[0].device))])
        sums = CodedSums(codings[rank], buckets, rank=rank, world=WORLD)
        (bucket,), scratch, transport, results = buckets.buckets, Scratch(), hub.transport(rank), []
        assert sums.takes(bucket)
        for gradients in steps:
            sums.begin_step()
            buckets.used = [True]
            bucket.row(0).copy_(gradients[rank].flatten())
            sums.work(bucket, 0)(scratch, transport)
            sums.end_step()
            results.append(bucket.row(0).view(SHAPE).clone())
        return torch.stack(results)

    with ThreadPoolExecutor(WORLD) as pool:
        results = list(pool.map(one, range(WORLD)))
    kept = [coding.residuals.owed("matrix") for coding in codings]
    owed = [torch.zeros_like(steps[0][0]) if one is None else one.view(SHAPE) for one in kept]
    return Summed(results, owed, [coding.wire_bytes for coding in codings], hub.bytes_sent)


def gradients_of(step: int, device: str = "cpu") -> Tensor:
    """(WORLD, *SHAPE) of many magnitudes, signs mixed."""
    drawn = torch.randn(WORLD, *SHAPE, generator=torch.Generator().manual_seed(step))
    return (drawn * torch.logspace(-3, 1, SHAPE[1])).to(device)


@pytest.mark.parametrize("codec", NAMES)
def test_all_members_get_the_same_sum_for_half_the_bytes_which_are_counted(codec: str, device: str) -> None:
    done = summed(codec, [gradients_of(step, device) for step in range(3)])
    assert all(torch.equal(result, done.results[0]) for result in done.results)
    assert done.counted == done.sent
    uncoded = 3 * 2 * (WORLD - 1) * 4 * SHAPE[0] * SHAPE[1]
    # Members own a third of the values each: a block more, or two, than without cuts.
    assert 0 < sum(done.sent) <= uncoded / 2 * 1.01


@pytest.mark.parametrize("codec", NAMES)
def test_a_sum_is_off_by_what_is_owed_or_by_rounding(codec: str, device: str) -> None:
    gradients = gradients_of(0, device)
    done, truth = summed(codec, [gradients]), gradients.sum(dim=0)
    if codec in OWING:
        # Float32 sums of three, in another order, and for PowerSGD products of factors that were made orthogonal.
        assert torch.allclose(done.total + sum(done.owed), truth, rtol=1e-4, atol=1e-4)
        # A contraction, member by member: of its own messages and of the sum that it owns.
        assert sum(one.norm() for one in done.owed) <= 2 * sum(one.norm() for one in gradients)
    else:
        # Eight significant bits, of each gradient and then of the sum; 2^-25 near zero for fp16.
        bound = (gradients.abs().sum(dim=0) + truth.abs()) * 2**-8
        assert ((done.total - truth).abs() <= bound * 1.01 + WORLD * 2**-24).all()
        assert not any(one.any() for one in done.owed)


@pytest.mark.parametrize("codec", OWING)
def test_in_the_long_run_every_sum_arrives(codec: str) -> None:
    gradients, steps = gradients_of(0), 300
    done, truth = summed(codec, [gradients] * steps), gradients.sum(dim=0)
    # What is owed stays as long as one gradient times the steps between two sends of a value (100 for top-k, with as
    # much again for those that grow meanwhile); it does not grow with the number of steps.
    assert sum(one.norm() for one in done.owed) <= 200 * sum(one.norm() for one in gradients)
    largest = float(truth.abs().max())
    assert torch.allclose(done.total + sum(done.owed), steps * truth, rtol=1e-3, atol=1e-2 * largest)


@pytest.mark.parametrize("codec", NAMES)
def test_sums_of_zeros_are_zeros_and_nobody_owes(codec: str, device: str) -> None:
    done = summed(codec, [torch.zeros(WORLD, *SHAPE, device=device)] * 2)
    assert not any(one.any() for one in (*done.results, *done.owed))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("codec", NAMES)
def test_a_sum_that_is_not_finite_is_seen_by_all_and_owed_by_nobody(codec: str, bad: float) -> None:
    for member in range(WORLD):
        gradients = gradients_of(0)
        gradients[member, 10 * member, 50 * member] = bad
        done = summed(codec, [gradients])
        assert not any(result.isfinite().all() for result in done.results)
        assert all(one.isfinite().all() for one in done.owed)


@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e5, 1e34])
@pytest.mark.parametrize("codec", NAMES)
def test_sums_of_finite_gradients_are_finite(codec: str, scale: float) -> None:
    done = summed(codec, [gradients_of(step).sign() * scale for step in range(2)])
    assert all(one.isfinite().all() for one in (*done.results, *done.owed))
