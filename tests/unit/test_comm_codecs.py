"""What single codecs promise, and how a bucket is cut into coded messages."""

import pytest
import torch
from torch import Tensor

from ringleader.comm.codecs import RAW, Codec
from ringleader.comm.codecs.int8 import INT8, Int8
from ringleader.comm.codecs.messages import CodecRun, messages
from ringleader.comm.codecs.narrow import FP16
from ringleader.comm.codecs.onebit import OneBit
from ringleader.comm.codecs.topk import TOPK, TopK


def through(codec: Codec, values: Tensor) -> Tensor:
    message = torch.zeros(codec.size(values.numel()), dtype=torch.uint8)
    codec.encode(values, message)
    out = torch.empty_like(values)
    codec.decode(message, out)
    return out


def test_sizes_count_indices_and_scales() -> None:
    assert [Int8(block=256).size(n) for n in (0, 1, 256, 257)] == [0, 5, 260, 265]
    assert [TopK(one_in=100).size(n) for n in (0, 1, 100, 101)] == [0, 8, 8, 16]
    assert [OneBit(block=1024).size(n) for n in (0, 1, 1024, 1025)] == [0, 9, 136, 145]


def test_int8_is_off_by_half_a_level_of_its_block() -> None:
    values = torch.randn(1000)
    values[:256] *= 1000
    out = through(INT8, values)
    for start in range(0, 1000, 256):
        block = slice(start, start + 256)
        # The margin is for the rounding of the scale and of two products.
        half = values[block].abs().max() / 254 * (1 + 1e-5)
        assert (values[block] - out[block]).abs().max() <= half


def test_top_k_sends_the_largest_as_they_are() -> None:
    values = torch.randn(1000).clamp(-3, 3)
    values[torch.arange(0, 1000, 100)] = torch.tensor([7.0, -7.5] * 5)
    out = through(TOPK, values)
    assert torch.equal(out.nonzero().view(-1), torch.arange(0, 1000, 100))
    assert torch.equal(out[::100], values[::100])


def test_one_bit_sends_the_means_of_both_signs() -> None:
    out = through(OneBit(block=4), torch.tensor([1.0, 3.0, -2.0, -6.0, -1.0, -1.0, -4.0, -2.0, 5.0]))
    assert out.tolist() == [2, 2, -4, -4, -2, -2, -2, -2, 5]


def test_fp16_holds_finite_values_at_its_largest() -> None:
    out = through(FP16, torch.tensor([1e6, -1e6, torch.inf, 1.0]))
    assert out.tolist() == [65504, -65504, torch.inf, 1.0]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("chunk", [5, 64, 1 << 18])
def test_the_messages_of_all_owners_hold_every_element_once(world: int, chunk: int) -> None:
    runs = [
        CodecRun((0, 2), RAW),
        CodecRun((2, 103), INT8, 1),
        CodecRun((103, 103), TOPK, 2),
        CodecRun((103, 500), TOPK, 3),
    ]
    seen = torch.zeros(500, dtype=torch.int32)
    for owned in messages(runs, world, chunk):
        for message in owned:
            end = 0
            for piece in message.pieces:
                seen[slice(*piece.span)] += 1
                assert piece.run.span[0] <= piece.span[0] < piece.span[1] <= piece.run.span[1]
                assert piece.bytes.start >= end
                assert piece.bytes.start % 4 == 0
                end = piece.bytes.stop
            assert end <= message.nbytes < end + 4
            assert sum(piece.span[1] - piece.span[0] for piece in message.pieces) <= chunk
    assert (seen == 1).all()
