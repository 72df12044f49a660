"""Several data sets as one, in fixed shares: which row of which one stands at a position."""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ringleader.errors import DatasetUnsupported

SHARES = 1000
"""Positions in which every data set has its share exactly, wherever they begin."""


class Mix(Dataset[Any]):
    """Rows of several data sets, each with a share of every 1,000 positions in a row.

    `Mix({"code": (code, 0.7), "text": (text, 0.3)})` has 700 rows of `code` and 300 of `text` in any 1,000 positions,
    as evenly spread as whole rows allow, and the rows of each in their order. Shares are rounded to thousandths.

    Its length is one pass over the whole: the least at which every row of every data set has stood somewhere. The data
    sets that are short for their share begin anew in it. A session that shuffles draws from all positions, so a pass
    has the shares exactly, and a batch about; with `session.batches(mix, shuffle=False)` every 1,000 rows have them.

    Args:
        parts: by name, a map-style data set and its weight. Weights are relative: 7 and 3 are 0.7 and 0.3.

    Raises:
        DatasetUnsupported: a data set has no length or no random access, or has no rows.
        TypeError: not every part is a data set and its weight, by name.
        ValueError: a weight is not above zero, or is less than a thousandth of all.
    """

    def __init__(self, parts: Mapping[str, tuple[Any, float]]) -> None:
        _check_parts(parts)
        self.names = tuple(parts)
        self._datasets = [dataset for dataset, _ in parts.values()]
        self._sizes = np.array([_size(name, dataset) for name, (dataset, _) in parts.items()], np.int64)
        self.shares = dict(
            zip(parts, _thousandths({n: weight for n, (_, weight) in parts.items()}), strict=True)
        )
        counts = np.array(list(self.shares.values()), np.int64)
        self._pattern = _diffused(counts)  # (SHARES,): the data set at each place
        self._before = np.zeros(SHARES, np.int64)  # rows of the same data set at earlier places
        lengths = []
        for number, count in enumerate(counts.tolist()):
            places = np.flatnonzero(self._pattern == number)
            self._before[places] = np.arange(count)
            # The place of its last row: the pass has to last until then.
            rounds, rest = divmod(int(self._sizes[number]) - 1, count)
            lengths.append(rounds * SHARES + int(places[rest]) + 1)
        self._counts = counts
        self._length: int = max(lengths)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Any:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Many rows at once, in the order asked for; each data set is asked once."""
        numbers, rows = self._places(positions)
        found: list[Any] = [None] * len(rows)
        for number in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == number)
            for at, row in zip(
                where.tolist(), _fetch(self._datasets[number], rows[where].tolist()), strict=True
            ):
                found[at] = row
        return found

    def place(self, position: int) -> tuple[str, int]:
        """The data set's name, and the row there, that stands at a position."""
        numbers, rows = self._places([position])
        return self.names[int(numbers[0])], int(rows[0])

    def _places(self, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(n,) int64 numbers of data sets, (n,) int64 rows there."""
        asked = np.asarray(positions, np.int64)
        outside = (asked < -self._length) | (asked >= self._length)
        if outside.any():
            raise IndexError(f"row {asked[outside][0]} of a mix with {self._length} rows")
        rounds, places = np.divmod(asked % self._length, SHARES)
        numbers = self._pattern[places]
        return numbers, (rounds * self._counts[numbers] + self._before[places]) % self._sizes[numbers]


def _check_parts(parts: Any) -> None:
    pairs = isinstance(parts, Mapping) and all(isinstance(p, tuple) and len(p) == 2 for p in parts.values())
    if not pairs:
        raise TypeError(
            "a mix is made of data sets and their weights by name: Mix({'a': (dataset_a, 0.7), 'b': (dataset_b, 0.3)})"
        )


def _size(name: str, dataset: Any) -> int:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DatasetUnsupported(
            f"{name!r} of a mix is {type(dataset).__name__}, which is not a map-style dataset.",
            hint="Exactly-once rows need len(dataset) and dataset[row]: write its rows to files, and read those.",
        )
    if not len(dataset):
        raise DatasetUnsupported(f"{name!r} of a mix has no rows.", hint="Leave it out.")
    return len(dataset)


def _thousandths(weights: Mapping[str, float]) -> list[int]:
    """Whole shares that add up to SHARES, those with the largest rests rounded up."""
    for name, weight in weights.items():
        if not (isinstance(weight, Real) and math.isfinite(weight) and weight > 0):
            raise ValueError(f"the weight of {name!r} in a mix is {weight!r}; allowed: a number above 0")
    if not weights:
        raise ValueError("a mix needs at least one data set")
    # Of decimal fractions: 0.7 / (0.7 + 0.3) need not be 0.7.
    exact = [weight / math.fsum(weights.values()) * SHARES for weight in weights.values()]
    shares = [math.floor(round(each, 9)) for each in exact]
    # By number where rests are equal: all workers have to come to the same shares.
    rests = sorted(range(len(exact)), key=lambda n: (shares[n] - exact[n], n))
    for number in rests[: SHARES - sum(shares)]:
        shares[number] += 1
    for name, share in zip(weights, shares, strict=True):
        if not share:
            raise ValueError(
                f"{name!r} has less than a thousandth of a mix; allowed: 0.001 of all weights, or more"
            )
    return shares


def _diffused(counts: np.ndarray) -> np.ndarray:
    """(SHARES,) int64: the data set at each place, by error diffusion: the one that is furthest behind its share."""
    owed, pattern = np.zeros_like(counts), np.empty(SHARES, np.int64)
    for place in range(SHARES):
        owed += counts
        pattern[place] = int(owed.argmax())
        owed[pattern[place]] -= SHARES
    return pattern


def _fetch(dataset: Any, rows: list[int]) -> list[Any]:
    """Several rows, at once where the data set can."""
    fetch = getattr(dataset, "__getitems__", None)
    return list(fetch(rows)) if fetch else [dataset[row] for row in rows]
