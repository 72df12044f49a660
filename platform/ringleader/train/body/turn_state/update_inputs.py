"""Values that hooks of optimizers and functions of schedules go by, compared before and behind a turn on workers whose
updates parameter servers make.

These functions run at the servers, where no body has run: what a turn leaves for them is not there.
"""

from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.objects.step_functions import StepFunctions
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.hidden_state import looked_at

HOW = (
    "is set by a loop's body, and a hook of an optimizer or the function of a schedule goes by it: these run at the "
    "parameter servers, where no body does"
)
CURE = "go by session.loss or session.global_step there, scale the loss in the body, or use sync: ring without them"


class UpdateInputs:
    """The watch over one member's turns. Called from its training thread."""

    def __init__(self, context: MemberContext, functions: StepFunctions, variables: ProgramVariables) -> None:
        self._functions = functions
        self._variables = variables
        self._on = context.same_bits and context.rules.has_servers
        self._turns = 0
        self._before: dict[str, str] = {}

    def begin_turn(self) -> None:
        """Look at the values before the body gets a slice, in a few turns."""
        self._before = {}
        if self._on and looked_at(self._turns):
            self._before = {name: text for name, text, _ in self._functions.of_updates()}
        self._turns += 1

    def end_turn(self) -> None:
        """Name what the body has changed: as it calls `session.step`, and once more as it comes for its next slice."""
        for name, text, line in self._functions.of_updates() if self._before else ():
            if self._before.get(name, text) != text and name not in self._variables.found:
                self._variables.find(VariableFinding(name, line, CURE, HOW))
