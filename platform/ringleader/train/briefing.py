"""What a worker is told of the program before it has a seat: the calls that are over for all members, and what the
lines behind them began with. It runs those lines while the group trains on.

Nothing of it can be taken back: when a step commits, all members have begun its call, so that all know the end of the
calls before it, and the lines between them have been run.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringleader.train.calls import Ended

if TYPE_CHECKING:
    from ringleader.train.group import Group


@dataclass(frozen=True, slots=True)
class Brief:
    """A member's, at a commit. What it refers to does not change any more, so any thread may send it.

    Attributes:
        until: the call that runs; all calls before it are over for every member.
        left: the numbers of loops that the program's body left.
        boundaries: of the calls before `until`.
        variables: what the program's variables were at the begins of calls, and what was found.
    """

    until: int
    finished: tuple[Ended, ...]
    left: tuple[int, ...]
    boundaries: tuple[tuple[Any, ...], ...]
    variables: dict[str, Any]

    @classmethod
    def of(cls, group: "Group") -> "Brief":
        """That of a member whose transaction has just committed."""
        until, calls = settled_calls(group), group.calls
        return cls(
            until=until,
            finished=tuple(calls.finished[:until]),
            left=tuple(sorted(number for number in calls.left if number < until)),
            boundaries=tuple(group.sections.state()[1][:until]),
            variables=group.sections.variables.state(),
        )

    def since(self, known: int) -> dict[str, Any]:
        """What somebody lacks who knows the calls before `known`."""
        seen = {number: texts for number, texts in self.variables["seen"].items() if number >= known}
        return {
            "until": self.until,
            "finished": self.finished[known:],
            "left": self.left,
            "boundaries": (known, list(self.boundaries[known:])),
            "variables": self.variables | {"seen": seen},
        }


def settled_calls(group: "Group") -> int:
    """How many calls are over for all members, as soon as a transaction of the running one has committed here."""
    return max(0, group.calls.next - 1)


def take(group: "Group", told: dict[str, Any]) -> None:
    """Know what `since` gave. The lines behind those calls run here on what was recorded."""
    group.calls.finished += told["finished"]
    group.calls.left |= set(told["left"])
    group.sections.restore(told["boundaries"])
    group.sections.variables.restore(told["variables"])
    group.sections.run_until(len(group.calls.finished))
