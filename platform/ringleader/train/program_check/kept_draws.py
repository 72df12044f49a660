"""Random values that a program keeps from the first time on: by a row's number, or in `functools.lru_cache`.

When a step is computed once more, such a value is there and gives the same gradients. But it was drawn only the first
time: the generators, which started alike, stand elsewhere then. On another worker other rows come first, with other
numbers. What is read or computed without chance, like an image, may be kept: it leaves the generators as they are.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.data import Subset

from ringleader.program_text.current_line import BELOW
from ringleader.program_text.loop_bodies import text_of
from ringleader.train.rows.random_streams import Generator

BODY, DATA = "loop body", "data set"
HOW = "draws other random numbers when it runs again on the same rows"
CURE = (
    "it keeps a random value, in a dict, an attribute or functools.lru_cache, that another worker would draw anew and "
    "get another. Draw it each time, or draw it from a generator with a seed of its own, such as "
    "torch.Generator().manual_seed(row)"
)
States = Mapping[str, Any]


class DrawnNumbers:
    """The states of generators behind the loads and turns of a step, which are compared with those of the same step."""

    def __init__(self) -> None:
        self._states: list[tuple[str, States]] = []
        self._makes_module, self._seeds = False, 0
        self._hook = register_module_parameter_registration_hook(self._see_module)
        # Who has been given a seed does not tell it, as torch does.
        self._seeding = np.random.seed, random.seed
        np.random.seed, random.seed = self._counting(np.random.seed), self._counting(random.seed)

    def close(self) -> None:
        """Look no longer."""
        self._hook.remove()
        np.random.seed, random.seed = self._seeding

    def begin(self) -> None:
        """Forget what was made and drawn up to here."""
        self._states, self._makes_module, self._seeds = [], False, 0

    def note(self, name: str, own: Iterable[tuple[str, Generator]] = ()) -> None:
        """Note the states behind a load or a turn, with those of generators of the data set's own."""
        seeds = {"seeds": (torch.initial_seed(), self._seeds)}
        states = seeds | _global_states() | {path: _state(each) for path, each in own}
        self._states.append((name, {} if self._makes_module else states))
        self._makes_module, self._seeds = False, 0

    def take(self) -> list[tuple[str, States]]:
        """The states noted since `begin`, and begin anew."""
        taken = self._states
        self.begin()
        return taken

    def _see_module(self, *_: Any) -> None:
        # A network that is made when it is needed draws weights, and mostly loads others then.
        self._makes_module = True

    def _counting(self, seeds: Callable[..., None]) -> Callable[..., None]:
        @wraps(seeds)
        def seeded(*options: Any, **named: Any) -> None:
            self._seeds += 1
            seeds(*options, **named)

        return seeded


def differing(first: Iterable[tuple[str, States]], again: Iterable[tuple[str, States]]) -> list[str]:
    """The names of what drew other numbers, each once."""
    pairs = zip(first, again, strict=False)  # the load of a later step may be missing
    return list(dict.fromkeys(name for (name, a), (_, b) in pairs if _differ(a, b)))


def place_of_reads(dataset: Any) -> str:
    """The line, as "file:line", of the function of the program that reads rows of the data set; empty where a library
    reads them."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
    if code is None or code.co_filename.startswith(BELOW) or text_of(code.co_filename) is None:
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _differ(first: States, again: States) -> bool:
    if first.get("seeds") != again.get("seeds"):
        return False  # the program itself has seeded what it keeps, which is the same everywhere then
    return any(first[name] != again[name] for name in first.keys() & again.keys())


def _global_states() -> dict[str, Any]:
    legacy: Any = np.random.get_state()
    devices = torch.cuda.default_generators
    return {
        "torch": _state(torch.default_generator),
        "cuda": tuple(_state(each) for each in devices),
        "numpy": (legacy[1].tobytes(), *legacy[2:]),
        "random": random.getstate(),
    }


def _state(generator: Generator) -> Any:
    match generator:
        case torch.Generator():
            return generator.get_state().numpy().tobytes()
        case np.random.Generator():
            return repr(generator.bit_generator.state)
        case np.random.RandomState():
            return repr(generator.get_state())
        case random.Random():
            return generator.getstate()
