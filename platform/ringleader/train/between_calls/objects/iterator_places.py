"""The places at which iterators stand: short texts that are the same in every process, read without going on.

Of torch's loaders, of Python's own iterators and those of `itertools`, as far as they can be copied or tell how much is
left.
"""

import hashlib
import operator
import pickle
import random
import warnings
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

MOST_DEPTH = 6


def place_in(iterator: Any) -> str | None:
    """The iterator's place; None where it does not tell."""
    if isinstance(iterator, _BaseDataLoaderIter):
        # Each pass has a seed of its own, so that the begin of another one is told from the same place in this.
        return f"{iterator._num_yielded} of {iterator._base_seed}"
    if type(iterator).__module__ not in ("builtins", "itertools") or not hasattr(iterator, "__next__"):
        return None
    left = operator.length_hint(iterator, -1)
    return f"{left} left" if left >= 0 else _place(iterator, 0)


def _place(part: Any, depth: int) -> str | None:
    if isinstance(part, GeneratorType):
        frame = part.gi_frame
        return "ended" if frame is None else f"{frame.f_lasti} {_plain(list(frame.f_locals.values()), depth)}"
    with warnings.catch_warnings(action="ignore"):  # from Python 3.12 on: those of itertools lose it in 3.14
        try:
            kind, *state = part.__reduce__()
        except (TypeError, AttributeError):
            return None
    if kind is iter and callable(state[0][0]):
        return None  # of `iter(function, last)` the function knows
    return f"{kind.__name__}{_plain(state, depth)}"


def _plain(state: Any, depth: int) -> str:
    """What of a state is numbers and places of others. Of a long list its length counts: it has what was read."""
    if isinstance(state, bool | int | float | str | type(None)):
        return repr(state)
    if hasattr(state, "__next__") and depth < MOST_DEPTH:
        return _place(state, depth + 1) or type(state).__name__
    if isinstance(state, list | tuple) and depth < MOST_DEPTH:
        short = state if len(state) <= MOST_DEPTH else state[:1]
        return f"{len(state)}({', '.join(_plain(each, depth + 1) for each in short)})"
    drawn = state.get_state().numpy() if isinstance(state, torch.Generator) else state
    if isinstance(state, torch.Generator | random.Random | np.random.Generator | np.random.RandomState):
        return hashlib.blake2b(pickle.dumps(drawn), digest_size=8).hexdigest()
    return type(state).__name__
