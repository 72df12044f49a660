"""The weights of another job that this one begins with (`init_from`).

Every process that runs the program takes them over, model by model as they are registered: so the lines behind
`session.model` see the same weights in all of them. A peer's state or a checkpoint is taken over afterwards.
"""

from typing import Any

from torch import Tensor, nn

from ringleader.checkpoint.manifest import BeginningUnreadable, CheckpointUnreadable
from ringleader.checkpoint.snapshot import checkpoint_at
from ringleader.checkpoint.weights_file import SUFFIX, weights_at
from ringleader.elastic import Plan
from ringleader.program_text.current_line import running_place
from ringleader.spec.job import JOB_ID
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.generation.saving.saver import CheckpointSaver, joined
from ringleader.train.generation.starting.initial_optimizers import take_optimizers
from ringleader.train.job_warnings import JobWarnings
from ringleader.train.matched_weights import MatchedWeights, told
from ringleader.train.state.training_state import TrainingState

FEW = 0.5
"""A job that takes over a smaller share of its models' numbers was probably given another model, or other names."""


class Beginning:
    """One process's initial weights: read once, given to each model in turn, dropped at the first session call.

    Args:
        optimizers: the job begins with the optimizers' states, too.
    """

    def __init__(self, uri: str | None, *, optimizers: bool = False) -> None:
        self._uri = uri
        self._with_optimizers = optimizers
        self._given: list[dict[str, Any]] | None = None
        self._unread: CheckpointUnreadable | None = None
        self._models: list[MatchedWeights] = []
        self._others: list[MatchedWeights] = []
        self._line = ""
        self._begun = False

    @property
    def unread(self) -> CheckpointUnreadable | None:
        """The error that kept the weights from being read; None without one."""
        return self._unread

    def read(self) -> None:
        """Read the weights now rather than with the first model. An error is raised later, where the job begins."""
        if self._uri is None or self._given is not None:
            return
        try:
            self._given = _models_at(self._uri)
        except CheckpointUnreadable as error:
            self._given, self._unread = [], error

    def give(self, model: nn.Module) -> None:
        """Load into the next registered model the entries of the same name and shape; all else stays as it is."""
        if self._uri is None:
            return
        self._line = self._line or running_place()
        self.read()
        assert self._given is not None
        # Out of the list: what is left of it at the first seat belongs to no model of this job.
        given = self._given.pop(0) if self._given else {}
        own = {name: tensor for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
        matched = MatchedWeights.of(own, given)
        self._models.append(matched)
        if matched.taken:
            # Not strict: the rest of the model stays as the program made it.
            model.load_state_dict({name: given[name] for name in matched.taken}, strict=False)

    def begin(self, plan: Plan, warnings: JobWarnings, variables: ProgramVariables | None) -> None:
        """Drop the weights at this process's first seat: its program's lines have seen them, or they have not.

        Args:
            variables: get the finding that lines have run again without them; None where that changes no bits.

        Raises:
            CheckpointUnreadable: they cannot be read, and nothing is trained yet. Later that ends no job: a joiner has
                the state of the others, and only what its lines made of the weights may differ.
        """
        if self._uri is None or self._begun:
            return
        self._begun = True
        self._others = [MatchedWeights.of({}, given) for given in self._given or ()]
        self._given = []
        if self._unread is None:
            self._warn(warnings)
        elif plan.attempt == 1 and plan.start_transaction == 0:
            raise self._unread
        else:
            self._missed(self._unread, variables)

    def tell(
        self, held: TrainingState, saver: CheckpointSaver, warnings: JobWarnings, generation: int
    ) -> None:
        """Report the weights that the job begins with, and take over the optimizers' states, where it asks for them.
        Called on the member that the others are healed from, before the first step.

        Raises:
            CheckpointUnreadable: they cannot be read, or none of them fits.
        """
        if self._uri is None:
            return
        if self._unread is not None:
            raise self._unread
        if not any(model.taken for model in self._models):
            raise BeginningUnreadable(
                self._uri, "it has no entry with the name and shape of a weight of this job's models"
            )
        numbered = len(held.models) > 1
        taken = told([*self._models, *self._others], numbered=numbered)
        if self._with_optimizers:
            taken["optimizers"] = self._optimizers(held, warnings, self._uri)
        saver.tell_weights(self._uri, taken, generation)

    def _optimizers(self, held: TrainingState, warnings: JobWarnings, uri: str) -> int:
        """Take over the optimizers' states; returns of how many parameters. Raises CheckpointUnreadable."""
        taken = take_optimizers(held, uri)
        if not taken:
            warnings.add(
                "init_optimizers",
                f"init_from {uri} gives no state for any of this job's optimizers: all begin anew.",
                "It takes parameters of the same name and shape, and an optimizer of the same kind that was "
                "registered before the first loop.",
            )
        return len(taken)

    def _warn(self, warnings: JobWarnings) -> None:
        taken = sum(model.taken_numel for model in self._models)
        own = sum(model.own_numel for model in self._models)
        if taken < FEW * own:
            warnings.add(
                "init_from",
                f"init_from {self._uri} has {taken:,} of the {own:,} numbers of this job's models: the others have "
                f"another "
                f"name or shape there, and keep the values that the program gave them.",
                "If this is not intended, compare the names in the log (not in the file, not in this job, of "
                "another shape): "
                "wrapping a model, for example with torch.compile, adds a prefix to its names.",
            )

    def _missed(self, error: CheckpointUnreadable, variables: ProgramVariables | None) -> None:
        print(
            f"ringleader: init_from: {error.message} Training continues with the state of the other members."
        )
        if variables is not None:
            how = "could not be read when lines ran again, which saw the program's own weights instead"
            cure = "keep the job or file that init_from names until this job has ended"
            variables.find(VariableFinding("weights of init_from", self._line, cure, how))


def _models_at(uri: str) -> list[dict[str, Any]]:
    """The states of the models in a weights file or a checkpoint."""
    if JOB_ID.fullmatch(uri):
        raise BeginningUnreadable(uri, "a job id can be resolved by a control plane only")
    if uri.endswith(SUFFIX):
        return weights_at(uri)
    models: list[dict[str, Any]] = joined(checkpoint_at(uri).states)["models"]
    return models
