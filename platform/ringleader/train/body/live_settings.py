"""The settings of optimizers as they are now: saved, put back, and as a row of numbers."""

from itertools import chain, zip_longest
from operator import is_not
from typing import Any

from ringleader.train.body.saved_settings import SavedSettings
from ringleader.train.body.setting_numbers import CONSTANTS, Row, plain, take
from ringleader.train.state.training_state import TrainingState


class LiveSettings:
    """The parameter groups of all optimizers of one member, one after the other.

    Args:
        served: servers step the optimizers, so nobody receives these settings.
    """

    def __init__(self, held: TrainingState, *, served: bool) -> None:
        self._held = held
        self._served = served
        self._latest: list[SavedSettings] = []

    @property
    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer, _ in self._held.optimizers for group in optimizer.param_groups]

    def saved(self) -> list[SavedSettings]:
        """A copy of each group: the same list, with the same entries, as long as nothing has changed."""
        groups, latest = self.groups, self._latest
        known = zip_longest(groups, latest[: len(groups)])
        now = [
            saved if saved is not None and saved.stands(group) else self._save(group)
            for group, saved in known
        ]
        if len(now) != len(latest) or any(map(is_not, now, latest)):
            self._latest = now
        return self._latest

    def row(self) -> Row:
        """All their numbers."""
        return tuple(chain.from_iterable(saved.row for saved in self.saved()))

    def take(self, row: Row) -> None:
        """Set them to the numbers of a row."""
        values = iter(zip(row[::2], row[1::2], strict=True))
        for group in self.groups:
            take(group, values)

    def put_back(self, before: list[SavedSettings]) -> None:
        """Set them to what they were."""
        for group, saved in zip(self.groups, before, strict=False):
            saved.put_back(group)
        self._latest = before

    def _save(self, group: dict[str, Any]) -> SavedSettings:
        """Save a group, numpy's numbers as Python's: their arithmetic is the same on members that only receive them."""
        if not self._served:
            for key, value in list(group.items()):
                if type(value) not in CONSTANTS and key != "params" and (number := plain(value)) is not value:
                    group[key] = number
        return SavedSettings.of(group)
