"""A tensor file (safetensors) in one piece of memory: tensors are copied to where they will lie in the file.

The format: https://github.com/huggingface/safetensors#format.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.checkpoint.parts import ALIGNED

NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""Types that a tensor file can hold, and their names in it."""


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The layout of a file of these tensors.

    Attributes:
        head: everything before the tensors' bytes.
        places: by tensor, its first byte, counted from the end of the head.
        size_bytes: the size of all tensors.
    """

    head: bytes
    places: Mapping[str, int]
    size_bytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "TensorFile":
        # The widest types first: then each tensor begins at a multiple of its type's size.
        order = sorted(tensors, key=lambda name: -tensors[name].element_size())
        table, places, at = {}, {}, 0
        for name in order:
            tensor = tensors[name]
            places[name], end = at, at + tensor.nbytes
            table[name] = {
                "dtype": NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [at, end],
            }
            at = end
        text = json.dumps(table).encode()
        # The format allows spaces here: the first tensor then begins where the widest type may.
        text += b" " * (-len(text) % ALIGNED)
        return cls(len(text).to_bytes(8, "little") + text, places, at)

    @torch.no_grad()
    def fill(self, memory: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Copy all tensors into `memory`, (size_bytes,) uint8 on the CPU."""
        for name, at in self.places.items():
            tensor = tensors[name]
            place = memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            place.copy_(tensor)
