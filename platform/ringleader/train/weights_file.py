"""The weights file: the state that it can hold, and a write of which a reader sees all or nothing."""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save, save_file, save_model
from torch import Tensor, nn

from ringleader.checkpoint.weights_file import MODELS
from ringleader.errors import StepMisuse

CURE = "Keep it out of the state with register_buffer(..., persistent=False), or store it as real numbers."
EXTRA_CURE = (
    "Remove get_extra_state: register its tensors as buffers, and keep other values with "
    "session.keep(name, object)."
)


def check_writable(module: nn.Module) -> None:
    """Check that every entry of the module's state can be written as a plain tensor.

    Raises:
        StepMisuse: naming the entry that cannot.
    """
    writable: dict[torch.dtype, bool] = {}
    for name, entry in module.state_dict().items():
        what = "not a tensor" if not isinstance(entry, Tensor) else _strange(entry, writable)
        if what:
            raise StepMisuse(
                f"the model's state {name!r} is {what}, which a weights file (safetensors) cannot hold.",
                hint=EXTRA_CURE if name.endswith("_extra_state") else CURE,
            )


def write(module: nn.Module, path: Path, models: int = 1) -> None:
    """Write the module's state to `path`; a tensor under several names is written once. `models` is their number: where
    there are several, names begin with the number of their model."""
    told = {MODELS: str(models)}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when it is complete; the pid keeps apart processes that write at the same time.
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        save_model(module, str(partial), metadata=told)
    except RuntimeError:  # parts of one memory, none of them the whole: each is written for itself
        plain = {name: _plain(entry) for name, entry in module.state_dict().items()}
        save_file(plain, str(partial), metadata=told)
    partial.replace(path)


def _plain(tensor: Tensor) -> Tensor:
    # safetensors refuses tensors with another order of memory.
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _strange(tensor: Tensor, writable: dict[torch.dtype, bool]) -> str:
    """The reason why `tensor` cannot be written, empty if it can. `writable` remembers the answer by dtype."""
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}"
    if tensor.is_meta or tensor.is_quantized:
        return f"of {tensor.dtype} on {tensor.device}"
    if tensor.dtype not in writable:
        writable[tensor.dtype] = _writable(tensor.dtype)
    return "" if writable[tensor.dtype] else f"of {tensor.dtype}"


def _writable(dtype: torch.dtype) -> bool:
    try:
        # By trial: which dtypes can be written depends on the versions of torch and safetensors.
        save({"one": torch.empty(1, dtype=dtype)})
    except (SafetensorError, KeyError, ValueError, RuntimeError):
        return False
    return True
