"""Server 0's position in a loop whose items are leased, as all members take it over: one sum, to which the others add
zeros."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

import torch
from torch import Tensor

KNOWN = 7
"""Numbers at the front: all but the histogram and the buffers."""
STALENESS_BINS = 17
"""Bins of the histogram: 0, 1, ..., 15, and more."""


@dataclass(frozen=True, slots=True)
class ServerPosition:
    """The position, while no worker computes.

    Attributes:
        over: the loop is over.
        left: a body left it.
        leaves: the generation ends.
        step: global steps committed.
        loss: of the newest step; None before the first.
        wanted: server 0 wants a checkpoint.
        staleness: gradients by the number of versions between their pull and their update, in bins.
        buffers: (bytes,) uint8, the committed ones.
    """

    over: bool
    left: bool
    leaves: bool
    step: int
    samples: int
    loss: float | None
    wanted: bool
    staleness: Sequence[int]
    buffers: Tensor

    def encode(self) -> Tensor:
        """(n,) float64."""
        words = self.silence(len(self.buffers))
        # NaN stands for none: the vector holds numbers only, and the others' zeros leave it NaN.
        loss = nan if self.loss is None else self.loss
        known = [self.over, self.left, self.leaves, self.step, self.samples, loss, self.wanted]
        words[: KNOWN + STALENESS_BINS] = torch.tensor([*known, *self.staleness], dtype=torch.float64)
        # A byte in each float64: zeros from all others leave it as it is.
        words[KNOWN + STALENESS_BINS :] = self.buffers
        return words

    @staticmethod
    def silence(buffers: int) -> Tensor:
        """(n,) float64 from all others; `buffers`: their bytes."""
        return torch.zeros(KNOWN + STALENESS_BINS + buffers, dtype=torch.float64)

    @classmethod
    def decode(cls, words: Tensor) -> "ServerPosition":
        over, left, leaves, step, samples, loss, wanted = words[:KNOWN].tolist()
        ends = bool(over), bool(left), bool(leaves)
        counts = int(step), int(samples), None if isnan(loss) else loss
        staleness = words[KNOWN : KNOWN + STALENESS_BINS].to(torch.int64).tolist()
        return cls(*ends, *counts, bool(wanted), staleness, words[KNOWN + STALENESS_BINS :].to(torch.uint8))


def histogram(staleness: Mapping[int, int]) -> list[int]:
    """The counts by bins."""
    bins = [0] * STALENESS_BINS
    for versions, count in staleness.items():
        bins[min(versions, STALENESS_BINS - 1)] += count
    return bins
