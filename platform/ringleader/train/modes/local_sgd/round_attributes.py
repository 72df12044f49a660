"""What inner optimizers keep in attributes of their own, in a round: each replica starts from the committed ones, and
leaves some.

They become one as the states of optimizers do. Floating-point tensors are averaged; all else (counts, texts, arrays,
the keys of dicts, what is deleted) is as the first replica left it, and so are tensors where replicas have left others:
at other keys or places, of other shapes, or beside other parameters. Which replica does what follows from the program
alone: the bits are the same, whoever trained it.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ringleader.comm.objects import packed, unpacked
from ringleader.exchange import Exchange
from ringleader.train.state.optimizers.attribute_values import (
    SENT_TYPES,
    LeafPath,
    ParameterName,
    with_leaves,
)
from ringleader.train.state.training_state import TrainingState

_DIGEST_BYTES = 6
"""As many as float64 holds exactly."""


@dataclass(frozen=True, slots=True)
class AveragedTensor:
    """Stands for a tensor that is averaged, in the values that the first replica left."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True, slots=True)
class LeftAttributes:
    """What a replica left.

    Attributes:
        share: of the round's rows.
        values: by the optimizer's number; none for one that has changed something which cannot be sent.
        tensors: copies of those that are averaged, by the optimizer's number, and by their paths in `values`.
    """

    share: float
    values: Mapping[int, Any]
    tensors: Mapping[int, Mapping[str, Tensor]]


LEFT_TYPES = (LeftAttributes, AveragedTensor, *SENT_TYPES)


class RoundAttributes:
    """One member's part in the attributes of a round."""

    def __init__(self, held: TrainingState, shards: int) -> None:
        self._held = held
        self._shards = shards
        self._left: dict[int, LeftAttributes] = {}
        self._agreed: dict[int, Any] = {}

    def begin(self) -> None:
        """Begin a round: no replica has been brought."""
        self._left, self._agreed = {}, {}

    def left(self, share: float) -> LeftAttributes:
        """What the running replica leaves."""
        values: dict[int, Any] = {}
        tensors: dict[int, dict[str, Tensor]] = {}
        for number, optimizer in self._keeping():
            sent = self._held.attributes.sent(optimizer)
            if sent is not None:
                values[number], tensors[number] = _apart(sent)
        return LeftAttributes(share, values, tensors)

    def bring(self, shard: int, left: LeftAttributes) -> None:
        """Count a replica of this member for the running round."""
        self._left[shard] = left

    @torch.no_grad()
    def agree(self, exchange: Exchange, scale: float) -> None:
        """Exchange what all replicas have left, where any optimizer may keep something. All members call this together.

        Args:
            scale: turns shares of the round's rows into shares of its weights.

        Raises:
            ExchangeBroken: nothing has changed here.
        """
        numbers = [number for number, _ in self._keeping()]
        if not numbers:
            return
        table = exchange.all_reduce(self._table(numbers, exchange))
        present = table[:, 0].nonzero()[:, 0].tolist()
        for place, number in enumerate(numbers):
            lengths, structures = table[present, 1 + 2 * place], table[present, 2 + 2 * place]
            if bool((lengths > 0).all()):  # of all replicas, or none goes on from it
                alike = bool((structures == structures[0]).all())
                values = self._of_first(exchange, number, present[0], int(lengths[0]))
                self._agreed[number] = self._whole(
                    exchange, number, values, None if alike else present[0], scale
                )

    def commit(self) -> None:
        """Make what was agreed on the live attributes, which are the committed ones."""
        for number, values in self._agreed.items():
            self._held.attributes.put(self._held.optimizers[number][0], values)

    def _keeping(self) -> Iterator[tuple[int, Optimizer]]:
        for number, (optimizer, _) in enumerate(self._held.optimizers):
            if self._held.attributes.may_keep(optimizer):
                yield number, optimizer

    def _table(self, numbers: Sequence[int], exchange: Exchange) -> Tensor:
        """A row for each replica: that it is there, and by optimizer the length of its packed values, 0 where they
        cannot be sent, and a digest of its tensors' places."""
        table = torch.zeros(self._shards, 1 + 2 * len(numbers), dtype=torch.float64)
        for shard, left in self._left.items():
            table[shard, 0] = 1
            for place, number in enumerate(numbers):
                if number in left.values:
                    table[shard, 1 + 2 * place] = _length(left.values[number], exchange)
                    table[shard, 2 + 2 * place] = _structure(left.values[number])
        return table

    def _of_first(self, exchange: Exchange, number: int, shard: int, length: int) -> Any:
        """The values that the first replica left."""
        if exchange.communicator is None:  # who is alone has it, and no seal
            return self._left[shard].values[number]
        words = torch.zeros(-(-length // 4), dtype=torch.float64)
        if shard in self._left:
            sent = np.zeros(4 * len(words), np.uint8)
            sent[:length] = packed(self._left[shard].values[number], exchange.seal).numpy()
            words = torch.from_numpy(sent.view(np.uint32).astype(np.float64))
        told = exchange.all_reduce(words).numpy().astype(np.uint32).view(np.uint8)[:length]
        return unpacked(torch.from_numpy(told.copy()), exchange.seal, *LEFT_TYPES)

    def _whole(self, exchange: Exchange, number: int, values: Any, only: int | None, scale: float) -> Any:
        """The values with their tensors: means, or those of the `only` replica."""

        def filled(path: LeafPath, leaf: Any) -> Any:
            if not isinstance(leaf, AveragedTensor):
                return leaf
            rows = torch.zeros(self._shards, *leaf.shape, dtype=torch.float64)
            for shard, left in self._left.items():
                if only is None:
                    rows[shard] = left.tensors[number][repr(path)].double().cpu() * left.share * scale
                elif shard == only:
                    rows[shard] = left.tensors[number][repr(path)].double().cpu()
            mean = torch.zeros(leaf.shape, dtype=torch.float64)
            # One after the other, in the order of shards: `sum` may add in another one.
            for row in exchange.all_reduce(rows):
                mean += row
            return mean.to(leaf.dtype).to(leaf.device)

        return with_leaves(values, filled)


def _apart(values: Mapping[Any, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Values with placeholders, and the tensors that they stand for, by path."""
    tensors: dict[str, Tensor] = {}

    def taken(path: LeafPath, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
        if leaf.dim() == 0 or not leaf.is_floating_point():
            return leaf.detach().clone()
        # As text: it is the same for whoever unpacks the path.
        tensors[repr(path)] = leaf.detach().clone()
        return AveragedTensor(tuple(leaf.shape), leaf.dtype, leaf.device.type)

    return with_leaves(values, taken), tensors


def _length(values: Any, exchange: Exchange) -> int:
    """The bytes of packed values; 1 for a member that is alone."""
    return 1 if exchange.communicator is None else packed(values, exchange.seal).numel()


def _structure(values: Any) -> float:
    """A number that differs where the averaged tensors have other paths, shapes or types, or where other parameters are
    named, also in a list beside theirs: then they may be of other ones."""
    places: list[str] = []

    def seen(path: LeafPath, leaf: Any) -> None:
        told = leaf if isinstance(leaf, AveragedTensor | ParameterName) else None
        if told is not None or any(isinstance(key, ParameterName) for key in path):
            places.append(repr((path, told)))

    with_leaves(values, seen)
    # Dicts are equal in any order, in which replicas may have filled them.
    shown = "\n".join(sorted(places)).encode()
    return float(int.from_bytes(hashlib.blake2b(shown, digest_size=_DIGEST_BYTES).digest(), "big"))
