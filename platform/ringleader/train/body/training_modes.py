"""The modes of the registered models: which modules train or evaluate, and which parameters are frozen.

Every turn of a loop's body begins with the modes that stood before the loop, on every member and behind every pause. So
a body sets its modes in each turn. A switch in one turn that is missing in the next is warned of once.
"""

from collections.abc import Callable

from torch import nn

from ringleader.program_text.current_line import line_of_turn_matching
from ringleader.train.state.training_state import TrainingState

SWITCHES = r"\.(train|eval|requires_grad_)\(|\.(training|requires_grad) = "
CURE = "Set it in every turn, before session.step(loss), or between two loops."


class TrainingModes:
    """The modes of one member's models. Called from its training thread.

    Args:
        warn: called once, for a switch that counts for one turn only: the subject, a sentence, what to do.
    """

    def __init__(self, held: TrainingState, warn: Callable[[str, str, str], None]) -> None:
        self._held = held
        self._warn = warn
        self._modules: list[nn.Module] = []
        self._training: list[bool] = []
        self._trained: list[nn.Parameter] = []
        self._switched: set[nn.Module | nn.Parameter] = set()
        self._warned = False
        self._call = ""

    def begin_loop(self, call: str) -> None:
        """Take the modes that the lines before a loop over `call` have left."""
        self._call = call
        self._modules = [module for model in self._held.models for module in model.modules()]
        self._training = [module.training for module in self._modules]
        self._trained = [p for model in self._held.models for p in model.parameters() if p.requires_grad]
        self._switched = set()

    def begin_turn(self) -> None:
        """Restore the loop's modes; parameters that a turn unfroze are refused where their gradient comes."""
        for module, trains in zip(self._modules, self._training, strict=True):
            if module.training != trains:
                # Not by train(), which would switch the modules inside it, too.
                module.training = trains
                self._switched.add(module)
        for parameter in self._trained:
            if not parameter.requires_grad:
                parameter.requires_grad = True
                self._switched.add(parameter)

    def at_step(self) -> None:
        """Warn at `session.step` of a switch that the turn before made and this one did not."""
        if not self._switched or self._warned:
            return
        modes = dict(zip(self._modules, self._training, strict=True))
        names = {module: name for model in self._held.models for name, module in model.named_modules()}
        spoken = {p: name for name, p in self._held.spoken_parameters.items()}
        for switched in self._switched:
            if isinstance(switched, nn.Parameter):
                if switched.requires_grad:
                    self._say(f"the parameter {spoken.get(switched, '?')!r} was frozen")
            elif switched.training == modes[switched]:
                mode = "evaluation" if modes[switched] else "training"
                self._say(f"the module {names[switched]!r} was put into {mode} mode")
        self._switched = set()

    def _say(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            message = (
                f"{what} in one turn of a loop over {self._call} and not in the next "
                f"({line_of_turn_matching(SWITCHES)}). It applies to that turn only: each turn starts with the modes "
                "set before the loop."
            )
            self._warn("modes", message, CURE)
