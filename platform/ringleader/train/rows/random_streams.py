"""Random streams that depend on what is computed, never on who computes it."""

import hashlib
import random
from functools import cache

import numpy as np
import torch


def key(seed: int, *parts: int | str) -> int:
    """A 64-bit seed for the stream named by `parts`, the same in every process."""
    text = "/".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_all(seed: int, *parts: int | str) -> None:
    """Start torch's, numpy's and random's global streams at the stream named by `parts`."""
    value = key(seed, *parts)
    if _has_devices():
        torch.manual_seed(value)
    else:
        # A step starts several streams. `torch.manual_seed` writes down the call stack for every kind of device that
        # is not there: 0.3 ms.
        torch.default_generator.manual_seed(value)
    # The legacy global numpy generator is what datasets and transforms draw from; it takes 32 bits.
    np.random.seed(value & 0xFFFF_FFFF)
    random.seed(value)


@cache
def _has_devices() -> bool:
    return torch.accelerator.is_available()
