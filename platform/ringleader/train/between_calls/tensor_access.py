"""The program's first operation on watched tensors of each kind, seen before it runs."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._pytree import tree_iter


class TensorAccess(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `touched` before the first operation that reads or writes storages of a kind.

    Not seen: `tolist()` and DLPack of a watched tensor itself, and what C extensions read through a pointer.

    Args:
        storages: the storages watched, with the kind of each.
        touched: takes a kind; returns the kinds that need no watching any more.
    """

    def __init__(
        self, storages: Mapping[torch.UntypedStorage, str], touched: Callable[[str], Collection[str]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = {storage._cdata: kind for storage, kind in storages.items()}
        self._alive = list(storages)  # an identity is another storage's once its own is gone
        self._touched = touched

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports all of Dynamo

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._storages:
            for leaf in tree_iter((args, kwargs)):
                kind = self._kind(leaf)
                if kind:
                    self._reach(kind)
        return func(*args, **kwargs)

    def reach(self, kind: str) -> None:
        """Count as an operation what hands out the tensors of a kind without any."""
        # A kind that is done with, or of which there is nothing yet, is of no interest.
        if kind in self._storages.values():
            self._reach(kind)

    def begin(self) -> None:
        """Go to the bottom of this thread's stack of modes: what the program puts on it and takes off stays its own."""
        above = [_pop_mode() for _ in _get_current_dispatch_mode_stack()]
        self.__enter__()  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            _push_mode(mode)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Watch nothing while the block runs."""
        storages, self._storages = self._storages, {}
        try:
            yield
        finally:
            self._storages = storages

    def end(self) -> None:
        """Leave the stack of modes. Those that the program has put there stay."""
        self._storages = {}
        above = []
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        # Back on top once more: `__exit__` takes off whichever mode is there.
        _push_mode(self)
        self.__exit__(None, None, None)
        for mode in reversed(above):
            _push_mode(mode)

    def _reach(self, kind: str) -> None:
        done = self._touched(kind)
        self._storages = {key: kind for key, kind in self._storages.items() if kind not in done}

    def _kind(self, leaf: object) -> str:
        """The kind of a watched tensor; empty for all else."""
        if (
            not isinstance(leaf, Tensor)
            or leaf.layout is not torch.strided
            or torch._is_functional_tensor(leaf)
        ):
            return ""
        return self._storages.get(leaf.untyped_storage()._cdata, "")
