"""The account of an attempt's time, whoever of its workers live: how long it lasts, and how that is split."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringleader.wire.views import Spent


@dataclass(frozen=True, slots=True)
class Times:
    """The account of one attempt. Moments are of the supervisor's monotonic clock, which goes on while the supervisor
    is restarted on its machine; durations in seconds.

    No worker need live as long as the attempt. So exposed communication and idle time are those of one worker at a
    time, the `followed` one; when it is gone, another is followed from its last report on.

    Attributes:
        began: when the training function was first called in a worker; None: in none yet.
        ended: when the attempt was over; None: it goes on.
        recovered_s: the recoveries so far, each from the first sign of the loss to the next committed step.
        exposed_s, idle_s: of those who were followed.
        stood_s: how long they stood still between generations, for a loss or for a change of the group.
        told: the last report of each worker on its own time.
    """

    began: float | None = None
    ended: float | None = None
    recovered_s: float = 0.0
    exposed_s: float = 0.0
    idle_s: float = 0.0
    stood_s: float = 0.0
    followed: str = ""
    told: Mapping[str, Spent] = field(default_factory=dict)

    def hear(self, worker: str, own: Spent, now: float, *, follow: bool) -> "Times":
        """The account with a worker's report on its own time; `follow`: it is the one to be followed from now on."""
        began = now - own.wall_s
        first = self.began is None
        times = replace(
            self,
            # Reports come in any order: one that began earlier may be heard later.
            began=began if self.began is None else min(self.began, began),
            told={**self.told, worker: own},
        )
        if not follow:
            return times
        # The past of a worker that is new here was counted by another one, unless it is the first of all.
        before = self.told.get(worker, Spent() if first else own)
        return replace(
            times,
            followed=worker,
            exposed_s=self.exposed_s + max(0.0, own.exposed_communication_s - before.exposed_communication_s),
            idle_s=self.idle_s + max(0.0, own.idle_s - before.idle_s),
            stood_s=self.stood_s + max(0.0, own.recovery_s - before.recovery_s),
        )

    def spent(self, now: float, broke_at: float | None = None) -> Spent | None:
        """The account at `now`; None before it has begun. `broke_at`: the first sign of the recovery that goes on.

        `wall_s` is the sum of the four parts. Recovery comes first: all of the `recovered` events, and what goes on.
        What remains holds exposed communication and idle time, the latter with what was stood still for changes of the
        group where nobody was lost. The rest is compute.
        """
        if self.began is None:
            return None
        until = now if self.ended is None else self.ended
        wall_s = max(0.0, until - self.began)
        open_s = 0.0 if broke_at is None else max(0.0, until - broke_at)
        recovery_s = min(wall_s, self.recovered_s + open_s)
        exposed_s = min(self.exposed_s, wall_s - recovery_s)
        waited_s = self.idle_s + max(0.0, self.stood_s - recovery_s)
        idle_s = min(waited_s, wall_s - recovery_s - exposed_s)
        return Spent(
            wall_s=wall_s,
            compute_s=wall_s - recovery_s - exposed_s - idle_s,
            exposed_communication_s=exposed_s,
            idle_s=idle_s,
            recovery_s=recovery_s,
        )


_KEYS = {name: name for name in Spent.model_fields} | {"exposed_communication_s": "exposed_s"}
"""The keys of `Spent`'s fields in the result of a worker that has finished."""


def of_finished(known: Mapping[str, Any]) -> Spent:
    """A worker's own time, from its result."""
    return Spent(**{name: known[key] for name, key in _KEYS.items()})


def in_finished(spent: Spent) -> dict[str, float]:
    """The attempt's time under the keys that hold the worker's own in its result."""
    return {key: getattr(spent, name) for name, key in _KEYS.items()}
