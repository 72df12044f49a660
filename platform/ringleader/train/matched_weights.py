"""The weights of another job that fit a model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class MatchedWeights:
    """One model's match: the names of weights that are taken over, and of the others why not.

    Attributes:
        taken_numel, own_numel: how many numbers are taken over, of how many that the model has.
    """

    taken: Sequence[str] = ()
    only_here: Sequence[str] = ()
    only_there: Sequence[str] = ()
    other_shape: Sequence[str] = ()
    taken_numel: int = 0
    own_numel: int = 0

    @classmethod
    def of(cls, own: Mapping[str, Tensor], given: Mapping[str, Any]) -> "MatchedWeights":
        both = own.keys() & given.keys()
        # An entry of somebody else's file need not be a tensor.
        fits = {name for name in both if own[name].shape == getattr(given[name], "shape", None)}
        return cls(
            taken=sorted(fits),
            only_here=sorted(own.keys() - both),
            only_there=sorted(given.keys() - both),
            other_shape=sorted(both - fits),
            taken_numel=sum(own[name].numel() for name in fits),
            own_numel=sum(tensor.numel() for tensor in own.values()),
        )


def told(models: Sequence[MatchedWeights], *, numbered: bool) -> dict[str, Any]:
    """The report on all models; `numbered` puts the number of its model before each name."""

    def names(which: str) -> list[str]:
        each: Iterable[tuple[int, MatchedWeights]] = enumerate(models)
        return [f"{n}.{name}" if numbered else name for n, model in each for name in getattr(model, which)]

    found = {which: names(which) for which in ("only_here", "only_there", "other_shape")}
    return {"taken": len(names("taken")), **found}
