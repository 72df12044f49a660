"""The checks of what a program does to its models and optimizers, in a loop's body and between calls."""

from torch.optim import Optimizer

from ringleader.train.body.call_checks import CallChecks
from ringleader.train.body.training_modes import TrainingModes
from ringleader.train.body.unsaved_attributes import UnsavedAttributes
from ringleader.train.commit_callbacks import CallbackState
from ringleader.train.generation.member import Member
from ringleader.train.job_warnings import WARNING
from ringleader.train.modes.mode import Mode
from ringleader.train.ports import RecordSink
from ringleader.train.state.model_structure import ModelStructure
from ringleader.train.state.optimizers.served_state import ServedOptimizerStates


class BodyChecks:
    """One session's checks.

    Attributes:
        structure: of the models, which an exchange is laid out for.
        modes: of modules and parameters, which each turn begins with.
        states: of the optimizers, which the program cannot see where servers keep them.
        calls: of the program's own calls of optimizers and backwards.
    """

    def __init__(self, member: Member, sink: RecordSink, steps: Mode) -> None:
        held = member.held
        self._member = member
        self._sink = sink
        self.structure = ModelStructure(held)
        self.modes = TrainingModes(held, self._warn)
        self.states = ServedOptimizerStates(held, on=member.rules.has_servers)
        self.calls = CallChecks(
            held, accumulates=lambda: steps.accumulates, warn=self._warn, states=self.states
        )
        self._attributes = UnsavedAttributes(
            member.rules, held, member.variables, matters=member.spec.sync.same_bits
        )
        callbacks = CallbackState(held, self._warn, around=self.states.hidden)
        held.run_within(self._attributes.watched, callbacks.watched)

    def optimizer(self, optimizer: Optimizer) -> None:
        """Watch an optimizer, and find what it carries from one step to the next outside of its state."""
        self.calls.optimizer(optimizer)
        self.states.add(optimizer)
        self._attributes.add(optimizer)

    def release(self) -> None:
        """End the checks with the session."""
        self.calls.release()
        self.structure.release()

    def _warn(self, about: str, message: str, hint: str) -> None:
        """Warn of something that a loop's body does; the first worker reports, which runs the body in every mode."""
        generation = self._member.current
        if generation is not None and generation.rank == 0:
            warning = {"about": about, "message": message, "hint": hint}
            self._sink.event(WARNING, generation.number, warning)
            print(f"ringleader: {message} {hint}")
