"""The control word: the few numbers that travel with every exchange.

Every member writes its own entries and leaves zeros elsewhere, so the sum over members is exact in any order and every
member ends with the same word. That is how all agree on a boundary, a stop, the loss and the rows that were used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from ringleader.train.device.host_copy import HostCopy
from ringleader.train.generation.saving.cadence import CheckpointVote

MAX_METRICS = 12
_EXACT = 1 << 24  # float32 holds every integer up to here; a step is sent modulo this
_MEMBER = 16
_HALF = 24
"""Bits of a fingerprint in one entry."""
_SHARD = 4 + MAX_METRICS
KINDS = ("barrier", "evaluate", "batches")


class LoopStance(IntEnum):
    """A member's stance on the loop it is in: it goes with the others, goes on, or has left it by `break`."""

    FOLLOWS = 0
    STAYS = 1
    LEAVES = 2


@dataclass(frozen=True, slots=True)
class ProgramPosition:
    """A member's position in the program: session call, its kind (a loop with its epoch), committed steps."""

    call: int
    kind: str
    step: int


class StepPace(NamedTuple):
    """A member's seconds from one commit to the next, and those of them in which it waited for the exchange; zeros
    before there is one."""

    elapsed_s: float = 0.0
    exposed_s: float = 0.0


class KnownFindings(NamedTuple):
    """What a member knows of the program: whether anybody has found what makes other bits, and how far a check beside
    the job has come. Others know it by the word should this member be lost.

    Attributes:
        found: somebody has.
        checked: 1 and the session call up to which the program was checked; 0 before.
    """

    found: bool = False
    checked: int = 0

    @property
    def number(self) -> int:
        """Both in one entry of the word."""
        return self.found + 2 * self.checked


@dataclass(frozen=True, slots=True)
class SliceReport:
    """One slice's report: weight, mean loss, checksums of its rows and of its metrics' names, metric values.

    Attributes:
        copy: (1 + metrics,) float32 loss and values on their way from a device; None where they are read themselves.
    """

    weight: float
    loss: Tensor
    checksum: int
    names: int = 0
    values: tuple[Tensor, ...] = ()
    copy: HostCopy | None = None

    def on_the_way(self) -> "SliceReport":
        """The same report. From a device its numbers are sent at once, ahead of the backward that the device is given
        next."""
        if not self.loss.is_cuda:
            return self
        numbers = [number.to(torch.float32).view(()) for number in (self.loss, *self.values)]
        on_device = [number.to(self.loss.device, non_blocking=True) for number in numbers]
        return replace(self, copy=HostCopy(torch.stack(on_device)))

    @property
    def numbers(self) -> list[float]:
        """The loss and the values."""
        if self.copy is not None:
            return list(self.copy.read().tolist())
        return [float(number) for number in (self.loss, *self.values)]


NOTHING: Mapping[int, SliceReport] = {}
UNPACED = StepPace()
UNKNOWN = KnownFindings()
BARRIER, EVALUATE, BATCHES = range(len(KINDS))


@dataclass(frozen=True, slots=True)
class StepReport:
    """A reduced word, decoded.

    Attributes:
        pending: a member knows of a newer plan; this is the last transaction of its generation.
        stop: a member asked to end the loop after this step.
        weight: the sum of all slice weights.
        loss: the weighted mean loss.
        values: the weighted means by metric slot.
        checksums: shard → checksum of the rows that entered the gradient.
        names: the checksums of the metrics' names that slices gave; one where all agree.
        used: per parameter, whether any slice anywhere gave it a gradient.
        left: the loop was left by `break`: this step does not happen.
        sets: a loop body has changed an optimizer's settings.
        unseen: no loop body has seen the outcome of the step before and could leave: this step does not happen yet.
        lays: the set of trained parameters is to change here: the step happens once all agree on it.
        repeats: a member asks for the step to be computed twice.
    """

    pending: bool
    stop: bool
    weight: float
    loss: float
    values: list[float]
    checksums: dict[int, int]
    names: frozenset[int]
    used: list[bool]
    left: bool = False
    unseen: bool = False
    lays: bool = False
    sets: bool = False
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class WordLayout:
    """The layout of the word's entries, fixed for a job's life: it has room for every member the job may ever have."""

    members: int
    shards: int
    parameters: int
    buffers: int
    length: int = field(init=False)

    def __post_init__(self) -> None:
        length = self.members * _MEMBER + self.shards * _SHARD + self.parameters + self.buffers
        object.__setattr__(self, "length", length)

    def write(
        self,
        *,
        rank: int,
        call: int,
        kind: int,
        step: int,
        pending: bool,
        stop: bool = False,
        stance: LoopStance = LoopStance.FOLLOWS,
        wish: CheckpointVote = CheckpointVote.OBJECTS,
        said: tuple[int, int] = (0, 0),
        lays: bool = False,
        sets: bool = False,
        repeats: bool = False,
        known: KnownFindings = UNKNOWN,
        pace: StepPace = UNPACED,
        slices: Mapping[int, SliceReport] = NOTHING,
        used: Sequence[bool] = (),
        buffers: Tensor | None = None,
    ) -> Tensor:
        """Build one member's word: (length,) float32.

        Args:
            kind: an index into KINDS, plus the epoch for a loop.
            said: fingerprints of the member's state and of its variables, below 2**48; 0 for none.
            pace: up to the commit before.
        """
        word = torch.zeros(self.length, dtype=torch.float32)
        own = (
            *(call, kind, step % _EXACT, pending, stop, stance, wish),
            # A fingerprint has 48 bits and an entry holds 24 exactly.
            *(said[0] >> _HALF, said[0] % _EXACT, lays, sets, said[1] >> _HALF, said[1] % _EXACT),
            *(repeats + 2 * known.number, *pace),
        )
        start = rank * _MEMBER
        word[start : start + _MEMBER] = torch.tensor(own, dtype=torch.float32)
        self._write_slices(word, slices)
        self._write_tail(word, used, buffers)
        return word

    def _write_slices(self, word: Tensor, slices: Mapping[int, SliceReport]) -> None:
        for shard, report in slices.items():
            start = self.members * _MEMBER + shard * _SHARD
            loss, *values = report.numbers
            word[start], word[start + 1] = report.weight, loss
            word[start + 2], word[start + 3] = report.checksum, report.names
            for slot, value in enumerate(values):
                word[start + 4 + slot] = value

    def _write_tail(self, word: Tensor, used: Sequence[bool], buffers: Tensor | None) -> None:
        tail = self.members * _MEMBER + self.shards * _SHARD
        if used:
            word[tail : tail + self.parameters] = torch.tensor(used, dtype=torch.float32)
        if buffers is not None:
            word[tail + self.parameters :] = buffers

    def buffers_of(self, word: Tensor) -> Tensor:
        """The encoded buffers' part of a reduced word."""
        return word[self.length - self.buffers :]

    def positions(self, word: Tensor, *, world: int, near: int) -> list[ProgramPosition]:
        """Each of `world` members' position, by rank. `near`: this member's own step, which says what is left out of
        the others'."""
        members = word[: world * _MEMBER].view(world, _MEMBER).tolist()
        return [ProgramPosition(int(m[0]), _kind(int(m[1])), _whole(int(m[2]), near)) for m in members]

    def stances(self, word: Tensor, *, world: int) -> list[LoopStance]:
        """Each of `world` members' stance on its loop, by rank."""
        return [LoopStance(int(s)) for s in word[: world * _MEMBER].view(world, _MEMBER)[:, 5].tolist()]

    def fingerprints(self, word: Tensor, *, world: int) -> list[int]:
        """Each of `world` members' fingerprint of the state, by rank; 0 where it gives none."""
        return _joined(word[: world * _MEMBER].view(world, _MEMBER)[:, 7:9])

    def variables(self, word: Tensor, *, world: int) -> list[int]:
        """Each member's fingerprint of the program's variables, likewise."""
        return _joined(word[: world * _MEMBER].view(world, _MEMBER)[:, 11:13])

    def wishes(self, word: Tensor, *, world: int) -> list[CheckpointVote]:
        """Each of `world` members' vote on a checkpoint, by rank."""
        return [CheckpointVote(int(w)) for w in word[: world * _MEMBER].view(world, _MEMBER)[:, 6].tolist()]

    def paces(self, word: Tensor, *, workers: int) -> list[StepPace]:
        """The pace of each of `workers` members, by rank."""
        members = word[: workers * _MEMBER].view(workers, _MEMBER)
        return [StepPace(*pace) for pace in members[:, 14:].tolist()]

    def lays(self, word: Tensor, *, world: int) -> bool:
        """Whether any member asks for another set of trained parameters."""
        return bool(word[: world * _MEMBER].view(world, _MEMBER)[:, 9].any())

    def known(self, word: Tensor, *, world: int) -> KnownFindings:
        """All that any of the members knows of the program."""
        said = [int(number) >> 1 for number in word[13 : world * _MEMBER : _MEMBER].tolist()]
        return KnownFindings(any(number & 1 for number in said), max(number >> 1 for number in said))

    def pending(self, word: Tensor, *, world: int) -> bool:
        """Whether any member knows of a newer plan."""
        return bool(word[: world * _MEMBER].view(world, _MEMBER)[:, 3].any())

    def read(self, word: Tensor, *, world: int, present: Sequence[int]) -> StepReport:
        """Decode a reduced word of `world` members."""
        members = word[: world * _MEMBER].view(world, _MEMBER).tolist()
        start = self.members * _MEMBER
        table = (
            word[start : start + self.shards * _SHARD]
            .view(self.shards, _SHARD)[list(present)]
            # In float64 a product of two float32 is exact.
            .to(torch.float64)
        )
        weights = table[:, 0]
        total = float(weights.sum())
        # Without a slice all weights are 0, and the means shall be 0 rather than NaN.
        means = (table[:, 1:] * weights[:, None]).sum(dim=0) / max(total, 1e-300)
        start += self.shards * _SHARD
        return StepReport(
            pending=any(m[3] for m in members),
            stop=any(m[4] for m in members),
            left=any(m[5] == LoopStance.LEAVES for m in members),
            unseen=all(m[5] == LoopStance.FOLLOWS for m in members),
            lays=any(m[9] for m in members),
            sets=any(m[10] for m in members),
            repeats=any(int(m[13]) & 1 for m in members),
            weight=total,
            loss=float(means[0]),
            values=means[3:].tolist(),
            checksums={shard: int(row[2]) for shard, row in zip(present, table.tolist(), strict=True)},
            names=frozenset(int(row[3]) for row in table.tolist()),
            used=[count > 0 for count in word[start : start + self.parameters].tolist()],
        )


def _joined(halves: Tensor) -> list[int]:
    """The numbers whose upper and lower halves are (n, 2)."""
    return [(high << _HALF) + low for high, low in halves.to(torch.int64).tolist()]


def _whole(sent: int, near: int) -> int:
    """The step closest to `near` of which `sent` is what travels."""
    return near + (sent - near + _EXACT // 2) % _EXACT - _EXACT // 2


def _kind(number: int) -> str:
    return KINDS[number] if number < BATCHES else f"batches, epoch {number - BATCHES}"
