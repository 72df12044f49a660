"""Which weights of another job fit a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Matched:
    """Names of weights: of those taken over, and of the others why not."""

    taken: list[str]
    only_here: list[str]
    only_there: list[str]
    other_shape: list[str]

    def add(self, own: Mapping[str, Tensor], given: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
        """Compare two models. Returns what can be taken over."""
        both = own.keys() & given.keys()
        fits = {name for name in both if own[name].shape == getattr(given[name], "shape", None)}
        lists = (self.taken, self.only_here, self.only_there, self.other_shape)
        found = (fits, own.keys() - both, given.keys() - both, both - fits)
        for names, news in zip(lists, found, strict=True):
            names += [prefix + name for name in sorted(news)]
        return {name: given[name] for name in fits}

    def told(self) -> dict[str, Any]:
        return {"taken": len(self.taken)} | {
            "only_here": self.only_here,
            "only_there": self.only_there,
            "other_shape": self.other_shape,
        }
