"""The cost of a recovery, by phase: the times between the first sign of a loss and the next committed step."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Recovery:
    """The marks of one recovery, in seconds of the supervisor's clock; None where it has not got so far.

    Attributes:
        sign: the first sign: a broken exchange, a death notice, or the last heartbeat of one that is frozen.
        known: who was lost is certain.
        formed: the plan was made.
        seated: its last member was connected.
        healed: its last member had the newest state.
    """

    sign: float
    known: float | None = None
    formed: float | None = None
    seated: float | None = None
    healed: float | None = None

    def again(self, now: float) -> "Recovery":
        """The same recovery, going on after something else broke before a step was committed."""
        return Recovery(sign=self.sign, known=now)

    def mark(self, name: str, now: float) -> "Recovery":
        return replace(self, **{name: now})

    def phases(self, now: float, steps_lost: int) -> dict[str, float]:
        """The data of a `recovered` event, with the first step committed at `now`."""
        marks = [self.sign]
        for mark in (self.known, self.formed, self.seated, self.healed, now):
            # Never backwards: a phase that was skipped took no time, and the sum stays the total.
            marks.append(max(marks[-1], mark if mark is not None else marks[-1]))
        names = ("detect_s", "decide_s", "regroup_s", "heal_s", "redo_s")
        spans = {n: round(b - a, 6) for n, a, b in zip(names, marks, marks[1:], strict=False)}
        return {**spans, "total_s": round(marks[-1] - marks[0], 6), "steps_lost": steps_lost}
