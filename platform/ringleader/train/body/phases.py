"""The phases of a step: which registered optimizers step in each, and which jobs can have them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.nn import Parameter
from torch.optim import Optimizer

from ringleader.errors import StepMisuse
from ringleader.train.modes.mode_rules import ModeRules
from ringleader.train.state.training_state import TrainingState

Phases = Sequence[Optimizer | Sequence[Optimizer]]
"""The optimizer of each phase, or several that step together."""


@dataclass(frozen=True, slots=True)
class PhaseUpdate:
    """The update behind all slices: of a phase, or of a step without phases.

    Attributes:
        optimizers: the numbers of those that step; None: all.
        ends: it is the step's last one, which commits it.
    """

    optimizers: tuple[int, ...] | None = None
    ends: bool = True

    def stepped(self, held: TrainingState) -> list[Parameter] | None:
        """The parameters of the optimizers that step, trainable now or not; None: of all."""
        if self.optimizers is None:
            return None
        groups = [group for number in self.optimizers for group in held.optimizers[number][0].param_groups]
        return [p for group in groups for p in group["params"]]

    def trained(self, held: TrainingState) -> list[Parameter] | None:
        """The parameters that get gradients for it; None: all that a loss reaches. Raises StepMisuse: none is left."""
        stepped = self.stepped(held)
        if stepped is None:
            return None
        trained = [p for p in stepped if p.requires_grad]
        if not trained:
            raise StepMisuse(
                "no parameter of this phase's optimizer is trainable: all have requires_grad=False.",
                hint="Leave them trainable: the other phases of a step give them no gradients.",
            )
        return trained


WHOLE_STEP = PhaseUpdate()


def numbered(
    phases: Phases, rules: ModeRules, codec: str, held: TrainingState
) -> tuple[tuple[int, ...], ...]:
    """The numbers of the optimizers that step in each phase.

    Raises:
        StepMisuse: this job's sync has no phases, or they do not name each registered optimizer.
    """
    if not phases:
        return ()
    _check_sync(rules, codec)
    numbers = {id(optimizer): number for number, (optimizer, _) in enumerate(held.optimizers)}
    each = [(phase,) if isinstance(phase, Optimizer) else tuple(phase) for phase in phases]
    for phase, optimizers in enumerate(each):
        if not optimizers or any(id(optimizer) not in numbers for optimizer in optimizers):
            raise StepMisuse(
                f"phase {phase} of session.steps names no optimizer that is registered now.",
                hint="Register each of them before the loop, optimizer = session.optimizer(…), with parameters of its "
                "own, and write phases=[critic_optimizer, generator_optimizer].",
            )
    found = tuple(tuple(numbers[id(optimizer)] for optimizer in optimizers) for optimizers in each)
    _check_all_named({number for phase in found for number in phase}, held)
    return found


def _check_sync(rules: ModeRules, codec: str) -> None:
    why = rules.no_phases
    if not why and codec != "none":
        why = f"codec: {codec}, which would add what it lost of one phase's gradients to those of another"
    if why:
        raise StepMisuse(
            f"session.steps was called with phases, but this job has {why}.",
            hint="Use sync: ring or synchronous servers, without a codec; or one optimizer for the sum of all losses.",
        )


def _check_all_named(named: set[int], held: TrainingState) -> None:
    for number, (optimizer, _) in enumerate(held.optimizers):
        if number not in named and any(group["params"] for group in optimizer.param_groups):
            raise StepMisuse(
                f"a registered optimizer ({type(optimizer).__name__}, number {number}) is in no phase of "
                f"session.steps, and would never step.",
                hint="Name every registered optimizer in a phase; several that step together in brackets: "
                "phases=[(encoder_optimizer, decoder_optimizer), critic_optimizer].",
            )
