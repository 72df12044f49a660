"""The settings of optimisers that a loop's body sets: each slice begins with the committed ones, and what the slices of
a batch have set counts for the update of that batch, on every member.

Where all workers make the update, one without a slice has not run the body; where servers make it, none of them has. So
a word says whether a body has set anything, and only then the settings travel, once a transaction.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ringleader.errors import StepMisuse
from ringleader.train.optimizer_states import assign

if TYPE_CHECKING:
    from ringleader.sync import Exchange
    from ringleader.train.group import Group

Row = tuple[float, ...]
"""Every number in the settings, each behind its type."""

Said = tuple[bool, Row | None]
"""Whether slices have set something, and all settings as the last one left them."""

_KINDS: tuple[type, ...] = (type(None), bool, int, float)
_TENSOR = len(_KINDS)
CURE = (
    "Set it before session.step(loss), by session.global_step, which is the same in all slices of a batch. A schedule "
    "that goes by steps is registered, session.scheduler(schedule), and the program does not step it."
)
SERVED = (
    "Register a schedule instead, which servers step with each update: session.scheduler("
    "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: …))."
)
ALONE = "Set it yourself, or register the schedule: in a round of local SGD both would count twice."
GROUPS = "Add or replace parameter groups between two loops, never in a loop's body."


class BodySettings:
    """One member's. Called from its training thread.

    Args:
        line: "file:line" where the program sets a key of a parameter group.

    Attributes:
        sets: the slices of the running transaction have set something.
        said: all settings as their `session.step` found them; None where no slice came to it.
    """

    def __init__(self, group: "Group", line: Callable[[str], str]) -> None:
        sync = group.spec.sync
        self.sets = False
        self.said: Row | None = None
        self._group = group
        self._line = line
        self._served = sync.leased or (sync.circulates and sync.server_count > 0)
        self._free = sync.circulates and not sync.server_count  # each worker steps for itself
        self._committed: list[_Saved] | None = None
        self._returned: list[_Saved] | None = None
        self._heals = -1
        self._owed: StepMisuse | None = None
        self._replica: Said = (False, None)

    def begin_loop(self) -> None:
        """A loop begins with what the lines before it have left."""
        self._make_plain()
        self._committed = self._returned = None

    def begin_turn(self) -> None:
        """The body gets a slice; all slices begin with the same settings."""
        if self._free:
            return
        if self._committed is None or self._heals != self._group.heals or self._served:
            self._heals = self._group.heals
            self._committed = self._snapshot()
        self.rewind()
        self._returned = self._committed

    def end_turn(self) -> None:
        """The body has called `session.step`.

        Raises:
            StepMisuse: the slices of a batch have set different things, or this mode has no use for them.
        """
        if self._free or self._committed is None:
            return
        self._make_plain()
        changed = self._change(self._committed)
        if self._served:
            if changed is not None:
                why = "where servers step the optimiser, and lines of a body do not reach them"
                raise self._misuse(f"was set to {changed.now} {why}", changed.key, SERVED)
            return
        if changed is not None:
            self._refuse_unfit(self._committed)
        row = self._encoded()
        if not self._in_rounds:
            self._hear((changed is not None, row), "slice of a batch")
            return
        if changed is not None and self._group.held.schedulers:
            raise self._misuse("was set beside a registered schedule", changed.key, ALONE)
        self._replica = (self._replica[0] or changed is not None, row)

    def step_returned(self) -> None:
        """`session.step` returns to the body."""
        if not self._free and self._committed is not None:
            self._returned = self._snapshot()

    def behind_turn(self) -> None:
        """The body has come to the end of its turn. Raises StepMisuse: it set something behind `session.step`."""
        self._check(
            "behind session.step(loss), where it would count for some slices of the next batch only", CURE
        )

    def left(self) -> None:
        """The loop was left in the middle of a turn: what that turn has set is undone, and refused at the next call."""
        try:
            self._check(
                "in the turn in which the loop was left, and no update follows there",
                "Set it behind the loop.",
            )
        except StepMisuse as error:
            self._owed = error
            self.rewind()
        self._returned = None

    def check_left(self) -> None:
        """Raises StepMisuse for what `left` has found."""
        owed, self._owed = self._owed, None
        if owed is not None:
            raise owed

    # --- a round of several steps ---------------------------------------------------------------------------------

    def begin_replica(self) -> None:
        """The next replica of a round begins with what is live."""
        self._replica = (False, None)
        if self._committed is not None:
            self._committed = self._snapshot()

    def inner_step(self) -> None:
        """The running replica has made a step: its next slice goes on from what is live."""
        if self._committed is not None:
            self._committed = self._snapshot()

    @property
    def replica(self) -> "Said":
        """What the slices of the running replica have set by now."""
        return self._replica

    def bring(self, said: "Said") -> None:
        """What a replica has set counts for the running round. Raises StepMisuse: two have set different things."""
        self._hear(said, "replica of a round")

    # --- a transaction --------------------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """No slice of it has been computed."""
        self.sets, self.said = False, None

    def agree(self, exchange: "Exchange") -> Row:
        """Some slice has set something. Returns what all said, for `take`.

        Raises:
            ExchangeBroken: nothing has changed here.
            StepMisuse: slices of different members have set different things.
        """
        seat = self._group.seat
        assert seat is not None
        length = len(self._encoded())
        said = torch.zeros(len(seat.plan.members), 1 + length, dtype=torch.float64)
        if self.said is not None:
            said[seat.rank] = torch.tensor([1.0, *self.said], dtype=torch.float64)
        table = exchange.all_reduce(said).tolist()
        rows = {rank: tuple(row[1:]) for rank, row in enumerate(table) if row[0]}
        first = next(iter(rows))
        for rank, row in rows.items():
            if row != rows[first]:
                members = seat.plan.members
                raise self._differs([rows[first], row], f"on {members[first]}", f"on {members[rank]}")
        return rows[first]

    def take(self, row: Row) -> None:
        """Make this live, before the update."""
        values = iter(zip(row[::2], row[1::2], strict=True))
        for group in self._groups:
            for key in _keys(group):
                _set(group, key, values)

    def committed(self) -> None:
        """An update is made: what stands now is what the next slices begin with."""
        self.sets, self.said = False, None
        self._make_plain()  # callbacks and schedules may have set some
        if self._committed is not None:
            self._committed = self._snapshot()

    def forget(self) -> None:
        """The transaction did not happen: back to what is committed."""
        self.sets, self.said = False, None
        self.rewind()

    def rewind(self) -> None:
        if self._committed is not None:
            for group, saved in zip(self._groups, self._committed, strict=False):
                saved.put_back(group)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer, _ in self._group.held.optimizers for group in optimizer.param_groups]

    def _snapshot(self) -> list["_Saved"]:
        return [_Saved.of(group) for group in self._groups]

    def _make_plain(self) -> None:
        """numpy's numbers become Python's, whose arithmetic is the same on members that only hear of them."""
        if self._free or self._served:
            return
        for group in self._groups:
            for key, value in list(group.items()):
                if key != "params" and (plain := _plain(value)) is not value:
                    group[key] = plain

    def _check(self, where: str, cure: str) -> None:
        self._make_plain()
        changed = self._change(self._returned) if self._returned is not None else None
        if changed is not None:
            raise self._misuse(f"was set to {changed.now} {where}", changed.key, cure)

    def _change(self, before: list["_Saved"]) -> "_Change | None":
        """The first thing that is not as it was. Raises StepMisuse: groups came or went, or their parameters did."""
        groups = self._groups
        if len(groups) != len(before) or not all(map(_Saved.same_parameters, before, groups)):
            raise self._misuse(
                "was changed: parameters came to an optimiser, or left it", "param_groups", GROUPS
            )
        for saved, group in zip(before, groups, strict=True):
            if (change := saved.change(group)) is not None:
                return change
        return None

    def _refuse_unfit(self, before: list["_Saved"]) -> None:
        """Raises StepMisuse: something has been set that a row of numbers of the same length does not tell."""
        for saved, group in zip(before, self._groups, strict=True):
            live = _settings(group)
            for key in sorted(saved.settings.keys() | live.keys()):
                if why := _unfit(saved.settings.get(key, _ABSENT), live.get(key, _ABSENT)):
                    raise self._misuse(why, key, CURE)

    def _encoded(self) -> Row:
        """All numbers of the settings."""
        return tuple(part for _, value in _leaves(self._groups) for part in _encode(value))

    @property
    def _in_rounds(self) -> bool:
        return self._group.spec.sync.architecture == "local_sgd"

    def _hear(self, said: "Said", of: str) -> None:
        sets, row = said
        if self.said is not None and row is not None and self.said != row:
            raise self._differs([self.said, row], f"in one {of}", "in another")
        self.sets |= sets
        self.said = self.said if row is None else row

    def _differs(self, rows: list[Row], here: str, there: str) -> StepMisuse:
        place = next(n for n, (one, other) in enumerate(zip(*rows, strict=True)) if one != other) // 2
        key = _leaves(self._groups)[place][0]
        one, other = (_shown(row[2 * place], row[2 * place + 1]) for row in rows)
        return self._misuse(f"was set to {one} {here} and to {other} {there}", key, CURE)

    def _misuse(self, what: str, key: str, cure: str) -> StepMisuse:
        place = self._line(key)
        return StepMisuse(
            f"an optimiser's {key!r} {what}, by the body of a loop over session.batches ({place}).", hint=cure
        )


@dataclass(frozen=True, slots=True)
class _Change:
    key: str
    now: Any


@dataclass(frozen=True, slots=True)
class _Saved:
    """A parameter group as it was.

    Attributes:
        tensors: those among the settings, with their versions and values.
        parameters: the group's list, and its length.
    """

    settings: dict[str, Any]
    tensors: tuple[tuple[Tensor, int, Tensor], ...]
    parameters: tuple[Any, int]

    @classmethod
    def of(cls, group: dict[str, Any]) -> "_Saved":
        settings = _settings(group)
        tensors = tuple(
            (value, value._version, value.detach().clone())
            for value in settings.values()
            if isinstance(value, Tensor)
        )
        return cls(settings, tensors, (group["params"], len(group["params"])))

    def same_parameters(self, group: dict[str, Any]) -> bool:
        return group["params"] is self.parameters[0] and len(group["params"]) == self.parameters[1]

    def change(self, group: dict[str, Any]) -> _Change | None:
        live = _settings(group)
        for tensor, version, value in self.tensors:
            if tensor._version != version and not torch.equal(tensor, value):
                key = next((key for key, each in live.items() if each is tensor), "lr")
                return _Change(key, tensor.detach().clone())
        if live == self.settings:
            return None
        keys = [*self.settings, *(key for key in live if key not in self.settings)]
        key = next(key for key in keys if key not in live or live[key] != self.settings.get(key, _ABSENT))
        return _Change(key, live.get(key, _ABSENT))

    @torch.no_grad()
    def put_back(self, group: dict[str, Any]) -> None:
        if self.change(group) is None:
            return
        for tensor, _, value in self.tensors:
            tensor.copy_(value)
        assign(group, self.settings)


_ABSENT = object()


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _keys(group: dict[str, Any]) -> list[str]:
    return sorted(key for key in group if key != "params")


def _leaves(groups: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Numbers by their keys, those in tuples one by one; all else is left out."""
    found = []
    for group in groups:
        for key in _keys(group):
            value = group[key]
            found += [(key, part) for part in (value if isinstance(value, tuple | list) else [value])]
    return [(key, value) for key, value in found if _is_number(value)]


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_number, value))
    return type(value) in _KINDS or (isinstance(value, Tensor) and value.numel() == 1)


def _plain(value: Any) -> Any:
    """A number of another type, numpy's for example, as Python's own, alone or in a tuple; all else as it is."""
    if type(value) in _KINDS:
        return value
    if isinstance(value, tuple | list):
        parts = [_plain(part) for part in value]
        return value if all(map(is_, parts, value)) else type(value)(parts)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _unfit(was: Any, now: Any) -> str:
    """What keeps this change from counting on other members; empty where nothing does."""
    if now is was:
        return ""
    if was is _ABSENT:
        return f"was set to {now!r}, and was not there before,"
    if now is _ABSENT:
        return "was deleted"
    if not _is_number(now):
        return f"was set to {now!r}, which is no number," if now != was else ""
    if [key for key, _ in _leaves([{"": was}])] != [key for key, _ in _leaves([{"": now}])]:
        return f"was set to {now!r} and was {was!r} before, which is not as many numbers,"
    return ""


def _encode(value: Any) -> tuple[float, float]:
    if isinstance(value, Tensor):
        return float(_TENSOR), float(value)
    return float(_KINDS.index(type(value))), 0.0 if value is None else float(value)


def _decoded(kind: float, value: float) -> Any:
    return None if kind == 0 else _KINDS[int(kind)](value)


def _shown(kind: float, value: float) -> str:
    return repr(value if kind == _TENSOR else _decoded(kind, value))


@torch.no_grad()
def _set(group: dict[str, Any], key: str, values: Any) -> None:
    """Give the group what comes next of the values."""
    mine = group[key]
    if isinstance(mine, tuple | list):
        told = [_one(part, values) for part in mine]
        if any(part is not own for part, own in zip(told, mine, strict=True)):
            group[key] = type(mine)(told)
    else:
        group[key] = _one(mine, values)


def _one(mine: Any, values: Any) -> Any:
    """The value in the place of this one: itself where that is no number, or the same."""
    if not _is_number(mine):
        return mine
    kind, value = next(values)
    if isinstance(mine, Tensor):
        return mine.fill_(value)
    if kind == _TENSOR:
        return value
    told = _decoded(kind, value)
    return mine if type(told) is type(mine) and told == mine else told
