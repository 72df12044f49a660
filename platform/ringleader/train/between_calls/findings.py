"""Findings about the program's variables: one that is not what it was, where, why, and the cure."""

from dataclasses import asdict, dataclass
from typing import Any

from ringleader.wire.findings import NO_HARM, sentence_of

BODY_CURE = (
    "read session.loss, pass the value to session.step(loss, name=value) for the log, or compute it with "
    "session.evaluate"
)
CARRIED_ADVICE = (
    "Count with session.global_step; accumulate values of rows in a buffer of a model passed to session.model; put a "
    "whole sequence into one row."
)
CARRIED_CURE = "a worker runs the body for its own slices only. " + CARRIED_ADVICE.rstrip(".")
STEPS_CURE = (
    "a worker that comes in at a step has not run the lines after earlier ones. Count with session.global_step, keep "
    "it with session.keep(name, object), or the best weights with session.best(model, score)"
)
STEPS_HOW = (
    "goes on from the lines after earlier steps, which have not run on a worker that came in at a step"
)


@dataclass(frozen=True, slots=True)
class VariableFinding:
    """A variable that is not what it was, with "file:line" of what set it.

    Attributes:
        how: the words, behind its name and line, for what is wrong with it.
    """

    variable: str
    line: str
    cure: str
    how: str = "has another value when its lines run again"

    @property
    def sentence(self) -> str:
        return sentence_of(self.variable, self.line, self.how, self.cure)

    @property
    def beforehand(self) -> dict[str, Any]:
        """The event's data for a finding made before lines ran again anywhere."""
        return asdict(self) | {"cure": f"{NO_HARM}: {self.cure}", "beforehand": True}
