"""What a training function may read of its session."""

from typing import Any, NamedTuple

import torch

from ringleader.spec import JobSpec
from ringleader.train.call_sequence import CallSequence
from ringleader.train.dataset_loops import DatasetLoops
from ringleader.train.generation.member import Member

NO_NORM = "session.norm is None on parameter servers, which make the updates, and a number in one process."
NORM_CURE = "Let nothing that is computed go by it: use session.loss, or sync: ring."


class Position(NamedTuple):
    """How far the job is, on all workers together.

    Attributes:
        epoch: the number of `batches` and `steps` loops that are over.
        step: the number of committed steps.
        calls: the number of session calls, loops and evaluations, that are over.
    """

    epoch: int
    step: int
    calls: int


class SessionValues:
    """The values of a session that only training changes."""

    _spec: JobSpec
    _device: torch.device
    _member: Member
    _calls: CallSequence
    _loops: DatasetLoops

    @property
    def params(self) -> dict[str, Any]:
        """`params` of the job file."""
        return dict(self._spec.params)

    @property
    def device(self) -> torch.device:
        """The device of models and batches: CUDA where the job asks for a GPU, the CPU otherwise."""
        return self._device

    @property
    def global_step(self) -> int:
        """The number of committed steps."""
        return self._member.progress.step if self._calls.shown is None else self._calls.shown.step

    @property
    def global_batch(self) -> int:
        """The rows of a global batch behind `global_step`: `batch.global_size`, or what `batch.schedule` says."""
        return self._spec.batch.size_at(self.global_step)

    @property
    def position(self) -> Position:
        """How far the job is on all workers together, while this one may still run lines that are over for the others.

        Nothing computed may depend on it: a worker that comes in late sees other values than those before it.
        """
        progress = self._member.progress
        loops = sum(not isinstance(each.result, dict) for each in progress.calls.finished)
        return Position(loops, progress.step, len(progress.calls.finished))

    @property
    def is_main(self) -> bool:
        """Whether this is the worker that prints and saves: one at a time, another one once it is lost; none before the
        first loop or evaluation, nor where lines run again whose calls are over.

        Nothing computed may depend on it, and no session call: the other workers would do something else.
        """
        generation = self._member.current
        return generation is not None and generation.rank == 0 and not self._member.sections.catches_up

    @property
    def norm(self) -> float | None:
        """The 2-norm of the whole gradient of the newest update, before it was clipped, the same on all workers. None
        where no norm was computed: without `clip_norm` for each optimizer, on parameter servers, with local SGD.
        """
        norm = self._member.progress.norm
        if norm is None and self._member.rules.has_servers and self._member.progress.step:
            self._member.warnings.add("norm", NO_NORM, NORM_CURE)
        return None if norm is None else float(norm)

    @property
    def epoch(self) -> int:
        """The number of `batches` loops before the running (or last) one."""
        return max(0, self._loops.epochs - 1)

    @property
    def loss(self) -> float | None:
        """The weighted mean loss of the newest committed step over all rows; None before the first."""
        return self._member.progress.loss if self._calls.shown is None else self._calls.shown.loss
