"""Whether a loop's body gives the same gradients when the same slices come once more.

The gradient of a slice may depend on the committed state and on the slice alone. State that the body keeps for itself
(a count in a closure, a hidden state, a generator of its own, a data set that counts) makes it depend on the turns that
a worker had before, and so on the number of workers. No text and no variable has to be known for that: a step is
computed twice before it is committed, and the gradients are compared, and the random numbers that were drawn.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ringleader.train.between_calls.findings import CARRIED_ADVICE, VariableFinding
from ringleader.train.generation.control_word import SliceReport, StepReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.synchronous.loop import SynchronousLoop
from ringleader.train.ports import RecordSink
from ringleader.train.program_check import kept_draws
from ringleader.train.program_check.kept_draws import BODY, DATA, DrawnNumbers, differing, place_of_reads
from ringleader.train.rows.random_streams import own_generators
from ringleader.train.rows.slices import Prefetched, Slice
from ringleader.train.state.fingerprints import fingerprint

NAMES = frozenset({BODY, DATA})
"""The variables of the findings."""
HOW = "gives other gradients when it runs again on the same rows"
CURE = (
    "it depends on its earlier turns: through a count, a hidden state, a generator or a data set. A worker runs the "
    "body for its own slices only. " + CARRIED_ADVICE.rstrip(".")
)


class RepeatedSteps(SynchronousLoop):
    """Steps of a check: the first one of each loop is computed twice.

    Args:
        compared: called behind each comparison, before the step is applied.
    """

    def __init__(
        self, member: Member, sink: RecordSink, device: torch.device, compared: Callable[[], None]
    ) -> None:
        super().__init__(member, sink, device)
        self._line = ""
        self._compared = compared
        self._number = -1
        self._first: list[bytes] | None = None
        self._drawn = DrawnNumbers()
        self._first_drawn = self._drawn.take()

    def stand_at(self, line: str) -> None:
        """Note the line of the loop that begins, for findings."""
        self._line = line

    def _is_repeated(self, report: StepReport) -> bool:
        loop = self._running
        if loop.number == self._number:
            return False
        gradients = self._gradients(report)
        if self._first is None:
            self._first, self._first_drawn = gradients, self._drawn.take()
            return True
        for name in differing(self._first_drawn, self._drawn.take()):
            line = place_of_reads(loop.dataset) if name == DATA else ""
            found = VariableFinding(name, line or self._line, kept_draws.CURE, kept_draws.HOW)
            self._member.variables.find(found)
        if gradients != self._first:
            self._member.variables.find(VariableFinding(BODY, self._line, CURE, HOW))
        self._number, self._first = loop.number, None
        self._compared()
        return False

    def _begin_loop(self, loop: BatchLoop) -> None:
        super()._begin_loop(loop)
        self._drawn.begin()

    def _load(self, loop: BatchLoop) -> Prefetched:
        return Prefetched(self._seen(loop, super()._load(loop)))

    def _seen(self, loop: BatchLoop, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; what is drawn to load them is noted, until a step of the loop has been computed twice."""
        while True:
            # Before: what is made by the load itself has no stream yet.
            own = list(own_generators((loop.dataset, loop.collate)))
            try:
                batch = next(batches)
            except StopIteration:
                return
            if loop.number != self._number:
                self._drawn.note(DATA, own)
            yield batch

    def _take(self, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        if self._running.number != self._number:
            self._drawn.note(BODY)
        super()._take(turn, loss, report)

    def _gradients(self, report: StepReport) -> list[bytes]:
        used = zip(self._member.parameters, report.used, strict=True)
        gradients = [p.grad for p, is_used in used if is_used and p.grad is not None]
        left = self._member.buffers.encode()
        return [fingerprint(_dense(tensor)) for tensor in (*gradients, left) if tensor is not None]


def _dense(gradient: Tensor) -> Tensor:
    """The gradient; of a table its rows, in the order of their numbers."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
