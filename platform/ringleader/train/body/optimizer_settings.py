"""The settings of optimizers that a loop's body sets: each slice begins with the committed ones, and the settings of a
batch's slices count for the update of that batch, on every member.

Where all workers make the update, one without a slice has not run the body; where servers make it, none of them has. So
a flag says whether a body has set anything, and only then the settings are exchanged, once a transaction.
"""

from collections.abc import Callable

import torch

from ringleader.errors import StepMisuse
from ringleader.exchange import Exchange
from ringleader.train.body.live_settings import LiveSettings
from ringleader.train.body.saved_settings import SavedSettings, SettingChange
from ringleader.train.body.setting_numbers import ABSENT, Row, leaves, shown, unfit
from ringleader.train.generation.context import MemberContext

Said = tuple[bool, Row | None]
"""Whether slices have set something, and all settings as the last one left them."""

CURE = (
    "Set it before session.step(loss), based on session.global_step, which is the same in all slices of a batch. "
    "Register schedules that advance by steps, session.scheduler(schedule), and do not step them yourself."
)
SERVED = (
    "Register a schedule instead, which servers step after each update: session.scheduler("
    "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: …))."
)
ALONE = "Either set it yourself or register the schedule: in a round of local SGD both would take effect."
GROUPS = "Add or replace parameter groups between two loops, never in a loop's body."


class OptimizerSettings:
    """The optimizer settings of one member. Called from its training thread.

    Args:
        line: gives "file:line" where the program sets a key of a parameter group.

    Attributes:
        sets: whether the slices of the running transaction have set something.
        said: all settings as their `session.step` found them; None where no slice came to it.
    """

    def __init__(self, context: MemberContext, line: Callable[[str], str]) -> None:
        rules = context.rules
        self.sets = False
        self.said: Row | None = None
        self._context = context
        self._line = line
        self._served = not (rules.commits_together or rules.steps_alone)
        self._in_rounds = context.spec.sync.outer_step is not None
        self._free = rules.steps_alone
        self._live = LiveSettings(context.held, served=self._served)
        self._committed: list[SavedSettings] | None = None
        self._returned: list[SavedSettings] | None = None
        self._heals = -1
        self._owed: StepMisuse | None = None
        self._replica: Said = (False, None)

    def begin_loop(self) -> None:
        """Begin a loop with the settings that the lines before it have left."""
        if not self._free:
            self._live.saved()
        self._committed = self._returned = None

    def begin_turn(self) -> None:
        """Put back the committed settings, with which all slices begin."""
        if self._free:
            return
        if self._committed is None or self._heals != self._context.progress.heals or self._served:
            self._heals = self._context.progress.heals
            self._committed = self._live.saved()
        self.rewind()
        self._returned = self._committed

    def end_turn(self) -> None:
        """Collect the settings of a slice when its body has called `session.step`.

        Raises:
            StepMisuse: the slices of a batch have set different things, or this mode has no use for them.
        """
        if self._free or self._committed is None:
            return
        changed = self._change(self._committed)
        if self._served:
            if changed is not None:
                why = "but parameter servers step the optimizer, which the body cannot reach"
                raise self._misuse(f"was set to {changed.now} {why}", changed.key, SERVED)
            return
        if changed is not None:
            self._refuse_unfit(self._committed)
        row = self._live.row()
        if not self._in_rounds:
            self._hear((changed is not None, row), "slice of a batch")
            return
        if changed is not None and self._context.held.schedulers:
            raise self._misuse("was set although a schedule is registered", changed.key, ALONE)
        self._replica = (self._replica[0] or changed is not None, row)

    def step_returned(self) -> None:
        """Save the settings as `session.step` returns to the body."""
        if not self._free and self._committed is not None:
            self._returned = self._live.saved()

    def behind_turn(self) -> None:
        """Check the settings at the end of a turn. Raises StepMisuse: the body set something behind `session.step`."""
        self._check(
            "after session.step(loss), where it would apply to some slices of the next batch only", CURE
        )

    def begin_lines(self) -> None:
        """Begin the lines behind a step, whose commit, or the peer that healed this member, may have set some."""
        self._returned = self._live.saved()

    def behind_step(self) -> None:
        """Check the settings behind a step's lines. Raises StepMisuse: they have set something."""
        self._check(
            "between two steps of session.steps, where workers that come in later have not run that line",
            CURE,
        )

    def left(self) -> None:
        """Undo the settings of a turn in which the loop was left; they are refused at the next call."""
        try:
            self._check(
                "in the turn in which the loop was left, after which no update follows",
                "Set it after the loop.",
            )
        except StepMisuse as error:
            # Not raised here: the loop's generator is being closed, where Python may print an error and go on.
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
        """Begin the next replica of a round with the live settings."""
        self._replica = (False, None)
        if self._committed is not None:
            self._committed = self._live.saved()

    def inner_step(self) -> None:
        """Save the live settings after a step of the running replica: its next slice goes on from them."""
        if self._committed is not None:
            self._committed = self._live.saved()

    @property
    def replica(self) -> "Said":
        """The settings that the slices of the running replica have set by now."""
        return self._replica

    def bring(self, said: "Said") -> None:
        """Count a replica's settings for the running round. Raises StepMisuse: two have set different things."""
        self._hear(said, "replica of a round")

    # --- a transaction --------------------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begin a transaction of which no slice has been computed."""
        self.sets, self.said = False, None

    def agree(self, exchange: Exchange) -> Row:
        """Exchange the settings, where some slice has set something; returns the agreed ones, for `take`.

        Raises:
            ExchangeBroken: nothing has changed here.
            StepMisuse: slices of different members have set different things.
        """
        generation = self._context.generation
        length = len(self._live.row())
        # A row for each member and a sum: every row has one writer, and float64 keeps each setting's bits.
        said = torch.zeros(len(generation.plan.members), 1 + length, dtype=torch.float64)
        if self.said is not None:
            said[generation.rank] = torch.tensor([1.0, *self.said], dtype=torch.float64)
        table = exchange.all_reduce(said).tolist()
        rows = {rank: tuple(row[1:]) for rank, row in enumerate(table) if row[0]}
        first = next(iter(rows))
        for rank, row in rows.items():
            if row != rows[first]:
                members = generation.plan.members
                raise self._differs([rows[first], row], f"on {members[first]}", f"on {members[rank]}")
        return rows[first]

    def take(self, row: Row) -> None:
        """Make these settings live, before the update."""
        self._live.take(row)

    def committed(self) -> None:
        """Commit the live settings after an update: the next slices begin with them."""
        self.sets, self.said = False, None
        if self._free:
            return
        now = self._live.saved()  # callbacks and schedules may have set some
        if self._committed is not None:
            self._committed = now

    def forget(self) -> None:
        """Go back to the committed settings: the transaction did not happen."""
        self.sets, self.said = False, None
        self.rewind()

    def rewind(self) -> None:
        """Go back to the committed settings."""
        if self._committed is not None:
            self._live.put_back(self._committed)

    def _check(self, where: str, cure: str) -> None:
        changed = self._change(self._returned) if self._returned is not None else None
        if changed is not None:
            raise self._misuse(f"was set to {changed.now} {where}", changed.key, cure)

    def _change(self, before: list[SavedSettings]) -> SettingChange | None:
        """The first change since `before`. Raises StepMisuse: groups came or went, or their parameters did."""
        now, groups = self._live.saved(), self._live.groups
        if now is before:
            return None
        if len(groups) != len(before) or not all(map(SavedSettings.same_parameters, before, groups)):
            raise self._misuse(
                "was changed: parameters were added to an optimizer, or removed from it",
                "param_groups",
                GROUPS,
            )
        for was, saved, group in zip(before, now, groups, strict=True):
            if was is not saved and (change := was.change(group)) is not None:
                return change
        return None

    def _refuse_unfit(self, before: list[SavedSettings]) -> None:
        """Raise StepMisuse where a setting has changed so that a row of numbers of the same length cannot hold it."""
        for saved, group in zip(before, self._live.groups, strict=True):
            for key in sorted((saved.settings.keys() | group.keys()) - {"params"}):
                if why := unfit(saved.settings.get(key, ABSENT), group.get(key, ABSENT)):
                    raise self._misuse(why, key, CURE)

    def _hear(self, said: "Said", of: str) -> None:
        sets, row = said
        if self.said is not None and row is not None and self.said != row:
            raise self._differs([self.said, row], f"in one {of}", "in another")
        self.sets |= sets
        self.said = self.said if row is None else row

    def _differs(self, rows: list[Row], here: str, there: str) -> StepMisuse:
        place = next(n for n, (one, other) in enumerate(zip(*rows, strict=True)) if one != other) // 2
        key = [key for group in self._live.groups for key, _ in leaves(group)][place]
        one, other = (shown(row[2 * place], row[2 * place + 1]) for row in rows)
        return self._misuse(f"was set to {one} {here} and to {other} {there}", key, CURE)

    def _misuse(self, what: str, key: str, cure: str) -> StepMisuse:
        place = self._line(key)
        return StepMisuse(f"an optimizer's {key!r} {what}, by a loop's body ({place}).", hint=cure)
