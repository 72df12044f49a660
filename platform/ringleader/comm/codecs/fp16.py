"""The codec `fp16`: IEEE half precision. Eleven significant bits; values below 3e-8 become zero, above 65504 that."""

import torch

from ringleader.comm.codecs.narrow import Narrow

FP16 = Narrow("fp16", torch.float16)
