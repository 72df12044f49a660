"""Session calls, numbered in program order. Finished ones with their results are committed state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A finished call: its result, and what the session showed when it ended.

    Attributes:
        result: the scores of an evaluation; of a loop over steps the newest step at which it evaluated, and None of any
            other loop.
    """

    result: Any
    step: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class StepEvaluations:
    """The evaluations behind a step, in a loop over steps: what the session showed there, and their scores."""

    step: int
    loss: float | None
    scores: tuple[dict[str, float], ...]


@dataclass(slots=True)
class SessionCalls:
    """The finished session calls, and the position in the running one.

    A joiner runs the training function from the top: finished calls return their recorded result without computing, and
    `global_step` and `loss` are those of that moment, so it takes the same branches as everybody else.

    Attributes:
        finished: by call number.
        offset: steps committed inside the running loop.
        next: the number the next call of this process takes.
        left: the numbers of loops that the program's body left, by `break` or by an exception.
        evaluated: the newest step at which the running loop over steps evaluated; None before.
        stopped: the running loop over steps ends behind the lines of this step.
        ended: the number of the first call behind the program's end; None before.
    """

    finished: list[FinishedCall] = field(default_factory=list)
    offset: int = 0
    next: int = 0
    left: set[int] = field(default_factory=set)
    evaluated: StepEvaluations | None = None
    stopped: bool = False
    ended: int | None = None

    @property
    def base(self) -> int:
        """Steps committed before the running call."""
        return self.finished[-1].step if self.finished else 0

    def before(self, number: int) -> int:
        """Steps committed before the call of that number, which follows a finished one."""
        return self.finished[number - 1].step if number else 0

    def begin(self) -> int:
        number = self.next
        self.next += 1
        return number

    def is_finished(self, number: int) -> bool:
        return number < len(self.finished)

    def end(self, number: int) -> None:
        """Note that the call of that number, which is over for all members, is one behind the program's end."""
        self.ended = number if self.ended is None else self.ended

    def count_step(self) -> None:
        """Count a step committed inside the running loop."""
        self.offset += 1

    def skip_to(self, offset: int) -> None:
        """Stand behind so many steps of the running loop."""
        self.offset = offset

    def stop(self) -> None:
        """End the running loop over steps behind the lines of this step."""
        self.stopped = True

    def take(self, finished: Iterable[FinishedCall]) -> None:
        """Append calls that are over for the others."""
        self.finished += finished

    def finish(self, number: int, ended: FinishedCall) -> None:
        # Once: a member that was healed past the end of the call knows it already.
        if number == len(self.finished):
            self.finished.append(ended)
            self.offset, self.evaluated, self.stopped = 0, None, False

    def evaluations_at(self, number: int, step: int) -> Sequence[dict[str, float]]:
        """The scores of the evaluations behind that step in the loop of call `number`, in their order."""
        at = self.finished[number].result if self.is_finished(number) else self.evaluated
        return at.scores if at is not None and at.step == step else ()

    def evaluate(self, step: int, loss: float | None, scores: dict[str, float]) -> None:
        """Add an evaluation behind the newest step of the running loop."""
        before = self.evaluated.scores if self.evaluated is not None and self.evaluated.step == step else ()
        self.evaluated = StepEvaluations(step, loss, (*before, scores))

    def state(self) -> dict[str, Any]:
        told = {"finished": list(self.finished), "offset": self.offset, "left": sorted(self.left)}
        within = {"evaluated": self.evaluated, "stopped": self.stopped, "ended": self.ended}
        return told | {name: value for name, value in within.items() if value}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a peer's finished calls; `next` is this process' own place in the program."""
        self.finished = list(state["finished"])
        self.offset = state["offset"]
        self.left = set(state.get("left", ()))  # checkpoints of earlier versions have none
        self.evaluated, self.stopped = state.get("evaluated"), state.get("stopped", False)
        self.ended = state.get("ended")
