"""The codec `bf16`: the upper half of a float32. Eight significant bits, and the range of float32."""

import torch

from ringleader.comm.codecs.narrow import Narrow

BF16 = Narrow("bf16", torch.bfloat16)
