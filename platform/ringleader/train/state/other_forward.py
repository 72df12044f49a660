"""A module's forward with another one in its place; names, weights and state stay as they are."""

import copyreg
from collections.abc import Callable
from typing import Any

from torch import nn

Forward = Callable[..., Any]


def put_forward(module: nn.Module, forward: Forward) -> None:
    """Have the module computed by `forward(module, *args, **kwargs)`, in place of its class' own.

    By its class, so that its attributes, and with them state, hooks and the names of weights, stay as they are. Copies
    and pickles of it have the class that it had.
    """
    plain = type(module)

    def reduced(self: nn.Module, protocol: Any) -> Any:
        _, _, *state = tuple(plain.__reduce_ex__(self, protocol))
        return copyreg._reconstructor, (plain, object, None), *state  # type: ignore[attr-defined]

    told = {
        "forward": forward,
        "__reduce_ex__": reduced,
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
    }
    other = type(plain.__name__, (plain,), told)
    other.__qualname__ = plain.__qualname__
    module.__class__ = other
