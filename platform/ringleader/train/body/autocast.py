"""The precision of user code: autocast from the moment a slice is yielded until its `step`, and in score functions.

Weights, gradients, optimizer state and all that is exchanged stay float32; `torch.autocast` says which operations of
the forward take 16 bits. The backward runs outside of it, as torch advises, in the types that the forward chose.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ringleader.spec import Precision

NARROW: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Autocast:
    """The autocast of one session. It belongs to a thread: to the one that runs the training function."""

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._dtype = NARROW.get(precision)
        self._device = device.type
        self._running: AbstractContextManager[Any] | None = None

    def body(self) -> AbstractContextManager[Any]:
        """The context that user code runs in; with fp32 it changes nothing, not even what the user has set."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device, dtype=self._dtype)

    def turns(self, turns: Iterator[Any]) -> Iterator[Any]:
        """Run the body of each turn inside it. However the loop is left, the thread is then as it was."""
        if self._dtype is None:
            yield from turns
            return
        enabled, dtype = torch.is_autocast_enabled(self._device), torch.get_autocast_dtype(self._device)
        try:
            for batch in turns:
                self._running = self.body()
                # By hand: it ends at the body's `step`, in the middle of the turn, and not where a block
                # would.
                self._running.__enter__()
                yield batch
                self._end(enabled, dtype)
        finally:
            self._end(enabled, dtype)

    def leave(self) -> None:
        """Leave the context, when the body has come to its `step`; idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)

    def _end(self, enabled: bool, dtype: torch.dtype) -> None:
        """End the turn. A `step` inside the user's own autocast left ours first, and theirs then restored ours: undo
        that."""
        self.leave()
        torch.set_autocast_enabled(self._device, enabled)
        torch.set_autocast_dtype(self._device, dtype)
