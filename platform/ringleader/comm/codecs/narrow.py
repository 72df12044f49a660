"""The codecs `bf16` and `fp16`: two bytes a value, a narrower floating-point type on the wire, float32 in every sum.

`bf16` is the upper half of a float32: eight significant bits, and the range of float32. `fp16` is IEEE half precision:
eleven significant bits; values below 3e-8 become zero, above 65504 that.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Narrow:
    """Implements Codec by rounding to nearest even. Finite values beyond the type's range become its largest.

    Without feedback: each value keeps its relative precision, and rounding errs to both sides alike.
    """

    name: str
    dtype: torch.dtype
    feedback: bool = False

    def size(self, length: int) -> int:
        return 2 * length

    def encode(self, values: Tensor, into: Tensor) -> None:
        most = torch.finfo(self.dtype).max
        # Not `> most`: a comparison with NaN is false, and NaN must not be hidden.
        beyond = values.numel() > 0 and not bool(values.abs().amax() <= most)
        # An infinity stays one, as a divergence must show; what is finite must not become one.
        into.view(self.dtype).copy_(
            torch.where(values.isinf(), values, values.clamp(-most, most)) if beyond else values
        )

    def decode(self, message: Tensor, into: Tensor) -> None:
        into.copy_(message.view(self.dtype))


BF16 = Narrow("bf16", torch.bfloat16)
FP16 = Narrow("fp16", torch.float16)
