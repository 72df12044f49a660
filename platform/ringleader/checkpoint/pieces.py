"""A nested state as a skeleton and its tensors, and the assignment of tensors to writers."""

import io
import pickle
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from ringleader.checkpoint.tensor_file import NAMES
from ringleader.errors import StepMisuse

PLAIN = frozenset(NAMES)
"""Types that a tensor file holds as they are; tensors of all others stay in the skeleton."""
COMPARED = PLAIN | {torch.complex32, torch.complex64, torch.complex128}
"""Types of tensors whose bits are compared."""

MOVED = {
    ("ringleader.comm.schedules.schedule", "Part"): ("ringleader.comm.schedules.schedule", "RankPart"),
    ("ringleader.comm.simulator", "Costs"): ("ringleader.comm.simulator", "ClusterCosts"),
    ("ringleader.comm.simulator", "Link"): ("ringleader.comm.simulator", "LinkCost"),
    ("ringleader.comm.simulator", "Tried"): ("ringleader.comm.simulator", "TriedSchedule"),
    ("ringleader.comm.tree", "Node"): ("ringleader.comm.tree", "TreeNode"),
    ("ringleader.sync.errands", "Push"): ("ringleader.train.modes.async_server.messages", "PushHeader"),
    ("ringleader.train.best", "_Frozen"): ("ringleader.train.best_weights", "_Frozen"),
    ("ringleader.train.calls", "Ended"): ("ringleader.train.between_calls.session_calls", "FinishedCall"),
    ("ringleader.train.reporter", "Record"): ("ringleader.train.generation.settled_records", "StepRecord"),
    ("ringleader.train.updating", "Counted"): (
        "ringleader.train.modes.async_server.server.apply_updates",
        "AppliedItem",
    ),
}
"""Classes in skeletons that earlier versions wrote, and their places now."""


def take_apart(
    state: Any, *, devices: bool = False, types: Collection[torch.dtype] = PLAIN
) -> tuple[bytes, list[Tensor]]:
    """The skeleton of a state, and its tensors in the order in which they are met. A tensor met twice comes once.

    Args:
        devices: the skeleton tells which of them lay on a device.
        types: of the tensors that are taken out. Pickled in the skeleton, two that are equal may have other bytes.

    Raises:
        StepMisuse: it holds what means nothing in another process, such as a function.
    """
    buffer = io.BytesIO()
    collector = _Collector(buffer, devices=devices, types=types)
    try:
        collector.dump(state)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise StepMisuse(
            f"the state that a step commits holds something that cannot be sent to another worker, nor saved: {error}.",
            hint="Leave functions, locks and open files out of parameter groups, schedules and kept objects: keep "
            "them in variables of the training function, which each worker makes itself.",
        ) from error
    return buffer.getvalue(), collector.tensors


def weights_in(state: Any, tensors: Sequence[Tensor]) -> dict[str, int]:
    """The numbers of the tensors that are entries of the state's models, by the model's number and the name in it."""
    numbers = {_place(tensor): number for number, tensor in enumerate(tensors)}
    models = state.get("models", []) if isinstance(state, dict) else []
    entries = ((f"{n}.{name}", entry) for n, model in enumerate(models) for name, entry in model.items())
    # Empty tensors have no address by which their number could be found.
    return {name: numbers[_place(entry)] for name, entry in entries if _plain(entry) and entry.numel()}


def put_together(skeleton: bytes, tensors: Sequence[Tensor], device: torch.device | None = None) -> Any:
    """Rebuild the state. The skeleton is unpickled: it must come from a source that may run code here.

    Args:
        device: for tensors that lay on a device; None: they stay where they are.
    """
    return _Restorer(io.BytesIO(skeleton), tensors, device).load()


def assign(sizes: Sequence[int], writers: int) -> tuple[int, ...]:
    """The writer of each tensor by its size in bytes: the largest first, each to the writer with the fewest bytes."""
    loads = [0] * writers
    chosen = [0] * len(sizes)
    # By number among equals: each writer has to come to the same answer by itself.
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        least = loads.index(min(loads))
        chosen[number] = least
        loads[least] += sizes[number]
    return tuple(chosen)


def _plain(entry: Any, types: Collection[torch.dtype] = PLAIN) -> bool:
    return isinstance(entry, Tensor) and entry.layout is torch.strided and entry.dtype in types


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


class _Collector(pickle.Pickler):
    """A pickler that replaces plain tensors by their number."""

    def __init__(self, buffer: io.BytesIO, *, devices: bool, types: Collection[torch.dtype]) -> None:
        super().__init__(buffer, protocol=5)
        self._types = types
        self.tensors: list[Tensor] = []
        self._devices = devices
        self._numbers: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, obj: Any) -> int | tuple[int, str] | None:
        if not _plain(obj, self._types):
            return None
        place = _place(obj)
        # Empty tensors may all have the address 0: each gets a number of its own.
        if obj.numel() == 0 or place not in self._numbers:
            self._numbers[place] = len(self.tensors)
            self.tensors.append(obj.detach())
        number, device = self._numbers[place], obj.device.type
        return (number, device) if self._devices and device != "cpu" else number


class _Restorer(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, tensors: Sequence[Tensor], device: torch.device | None) -> None:
        super().__init__(buffer)
        self._tensors = list(tensors)
        self._device = device

    def persistent_load(self, told: int | tuple[int, str]) -> Tensor:
        if isinstance(told, int):
            return self._tensors[told]
        number, _ = told
        if self._device is not None:
            self._tensors[number] = self._tensors[number].to(self._device)  # once, where it is met twice
        return self._tensors[number]

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(*MOVED.get((module, name), (module, name)))
