"""At which boundaries the committed state is copied for a checkpoint: all members come to the same."""

import time
from typing import TYPE_CHECKING

from torch import Tensor

from ringleader.checkpoint.manifest import Position
from ringleader.elastic.plan import Plan
from ringleader.train.cadence import Wish

if TYPE_CHECKING:
    from ringleader.train.group import Group


class Securing:
    """One member's.

    Attributes:
        agreed: the members want one at the running boundary, by time.
    """

    def __init__(self, group: "Group") -> None:
        self._group = group
        self._expects = True
        self.agreed = False

    @property
    def wish(self) -> Wish:
        """What this member says about it with its word. Who has no part to save goes with the others."""
        group = self._group
        assert group.seat is not None
        writes = group.saver.on and group.healing.part_to_save(group.seat) is not None
        return group.saver.wish if writes else Wish.FOLLOWS

    @property
    def due(self) -> bool:
        """Whether one is due at the next boundary, by steps or by what the members have agreed on."""
        group = self._group
        return group.saver.on and (self.agreed or group.saver.cadence.due(group.boundary, group.step))

    @property
    def wanted(self) -> bool:
        """The same, or this member would like one: where boundaries inside a loop have to be asked for."""
        return self.due or self.wish is Wish.WANTS

    def hear(self, reduced: Tensor, plan: Plan) -> None:
        """The members' wishes of a transaction."""
        wishes = self._group.layout.wishes(reduced, world=len(plan.members))
        self.agreed = Wish.WANTS in wishes and Wish.OBJECTS not in wishes

    def committed(self) -> None:
        """All that is applied is committed and published: copy it where one is due."""
        group = self._group
        due, self.agreed = self.due, False
        # Before anything that may break: whoever joins next counts from this boundary too.
        group.boundary = group.step
        if due:
            group.comparison.before_saving()
            self.save()
        elif self._expects and group.saver.nears(group.step):
            self._expect()

    def begin(self) -> None:
        """A generation begins."""
        self._expects = True
        self.agreed = False

    def begun(self, plan: Plan) -> None:
        """It stands. What nobody else holds any more after a loss is copied at once."""
        saver = self._group.saver
        if plan.cause == "lost" and len(plan.members) == 1 and saver.would_secure(self._group.step):
            self.save()

    def save(self) -> None:
        group = self._group
        assert group.seat is not None
        plan = group.seat.plan
        since = time.perf_counter()
        part = group.healing.part_to_save(group.seat)
        if part is not None:
            position = Position(group.step, group.applied, plan.attempt, plan.generation)
            group.saver.save(group.healing.state_of(part), part, position)
        group.saver.cadence.copied(group.step, time.perf_counter() - since)

    def _expect(self) -> None:
        """The generation has made a step: the state is as large as what will be saved of it."""
        group = self._group
        assert group.seat is not None
        self._expects = False
        part = group.healing.part_to_save(group.seat)
        if part is not None and not (group.spec.sync.leased or group.spec.sync.circulates):
            group.saver.expect(group.healing.state_of(part), part)
