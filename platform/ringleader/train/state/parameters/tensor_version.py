"""A tensor's version: it grows with each change in place."""

from torch import Tensor


def version_of(tensor: Tensor) -> int:
    """The tensor's version; 0 for one that was made in inference mode, which has none and raises where it is read."""
    return 0 if tensor.is_inference() else tensor._version
