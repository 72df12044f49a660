"""Whether a loop's body gives the same gradients when the same slices come once more.

The gradient of a slice may depend on the committed state and on the slice alone. State that the body keeps for itself
(a count in a closure, a hidden state, a generator of its own, a data set that counts) makes it depend on the turns that
a worker had before, and so on the number of workers. No text and no variable has to be known for that: a step is
computed twice before it is committed, and the gradients are compared, and the random numbers that were drawn.

In a check of the program that is the first step of each loop. In a job it is the first step of each loop in the
program's text, where there can be no check beside the job; members agree on it with the word of that step.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ringleader.train.between_calls.findings import CARRIED_ADVICE, VariableFinding
from ringleader.train.between_calls.session_calls import FinishedCall
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.body.setting_numbers import Row
from ringleader.train.generation.context import MemberContext
from ringleader.train.program_check import kept_draws
from ringleader.train.program_check.kept_draws import (
    BODY,
    DATA,
    DrawnNumbers,
    States,
    differing,
    place_of_reads,
)
from ringleader.train.rows.random_streams import own_generators
from ringleader.train.state.parameters.tensor_fingerprint import fingerprint

BUFFERS = -1
"""The number of the buffers among sums."""
NAMES = frozenset({BODY, DATA})
"""The variables of the findings."""
HOW = "gives other gradients when it runs again on the same rows"
HOW_JOINED = "gives another loss in a worker that joins than in those that were there before"
HOW_LEFT = "leaves the loop after a step that was about to run again on the same rows"
HOW_SET = "sets other rates, or other settings of an optimizer, when it runs again on the same rows"
CURE = (
    "it depends on its earlier turns: through a count, a hidden state, a generator or a data set. A worker runs the "
    "body for its own slices only. " + CARRIED_ADVICE.rstrip(".")
)
CURE_JOINED = (
    "it goes on from what its earlier turns left, or keeps what its first rows made, wherever that is: in an object, a "
    "collate function, a data set, a file or the environment. A worker has turns and first rows of its own. Make it at "
    "the top of the program from all rows, or in a buffer of a model passed to session.model"
)


@dataclass(frozen=True, slots=True)
class _FirstTime:
    """What a step gave the first time: fingerprints of its sums by number, the settings of optimizers that its slices
    here made, and what was drawn in that generation."""

    prints: Mapping[int, bytes]
    settings: Row | None
    drawn: list[tuple[str, States]]
    generation: int


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A step that was computed twice: the "file:line" of its loop, its number, and the loss that it gave first."""

    line: str
    step: int
    loss: float | None


class RepeatedStep:
    """One member's comparisons. Called from its training thread; watches the turns of the loop body.

    Args:
        due: whether the job's own steps have to be compared.

    Attributes:
        asks: whether the running step has to be computed twice, as far as this member knows.
        compared: whether a step has been computed twice.
        shown: what the session shows behind the first time of a step; None elsewhere.
        newest: the step that was computed twice last; None before.
    """

    def __init__(self, context: MemberContext, variables: ProgramVariables, due: Callable[[], bool]) -> None:
        self.asks = self.compared = False
        self._context = context
        self._variables = variables
        self._due = due
        self._each_loop = False
        self._compared: Callable[[], None] = lambda: None
        self._lines: set[str] = set()
        self._line = ""
        self._dataset: Any = None
        self._first: _FirstTime | None = None
        self.shown: FinishedCall | None = None
        self.newest: ComparedStep | None = None
        self._told = True
        self._drawn: DrawnNumbers | None = None

    @property
    def again(self) -> bool:
        """Whether the running step is the second time, or that is due next."""
        return self._first is not None

    def left(self) -> None:
        """Note that the body has left the loop, and report it where a step was to come the second time: there it does
        what it did the first time, unless it goes by what its turns left."""
        if self._first is not None:
            finding = VariableFinding(BODY, self._line, CURE, HOW_LEFT)
            self._find(finding, 0 if self._is_of_this_generation(self._first) else None)

    def compare_each_loop(self, compared: Callable[[], None]) -> None:
        """Compare the first step of every loop, for a check of the program, and call `compared` behind it."""
        self._each_loop, self._compared = True, compared

    def begin_loop(self, line: str, dataset: Any, *, leaves: bool) -> None:
        """Begin the loop at that "file:line". `leaves`: its body leaves behind its step, where nothing would have been
        committed the first time."""
        self.close()
        new = line not in self._lines and self._context.same_bits and not leaves
        self.asks = self._each_loop or (new and self._due())
        self._line, self._dataset = line, dataset
        if self.asks:
            self._drawn = DrawnNumbers()

    def loaded(self, collate: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; what is drawn to load them is noted, until the comparison is over."""
        while self._drawn:
            # Before: what is made by the load itself has no stream yet.
            own = list(own_generators((self._dataset, collate)))
            try:
                batch = next(batches)
            except StopIteration:
                return
            if self._drawn:
                self._drawn.note(DATA, own)
            yield batch
        yield from batches

    def begin_turn(self) -> None:
        """Have prints told again, in the turn behind the second time."""
        self.shown = None
        if self._first is None:
            self._tell(told=True)

    def end_turn(self) -> None:
        """Note what a turn has drawn."""
        if self._drawn:
            self._drawn.note(BODY)

    def begin_step(self) -> None:
        """Begin the running step, once more or not: what the body prints in it is told the first time."""
        if self.asks and not self._context.came_first:
            # It follows: members that were there before have compared the loops so far. Only a seat tells.
            self.close()
        self.shown = None
        if self._first is not None:
            self._tell(told=False)

    def keep(self, sums: Mapping[int, Tensor], settings: Row | None, outcome: FinishedCall) -> None:
        """Keep what the step gave, before it is computed once more.

        Args:
            sums: of the gradients, by number.
            settings: those that the slices here made; None where there was none.
            outcome: what the session will show behind the step: the body sees it the first time, too.
        """
        self.shown = outcome
        self.newest = ComparedStep(self._line, outcome.step, outcome.loss)
        drawn = self._drawn.take() if self._drawn else []
        self._first = _FirstTime(self._prints(sums), settings, drawn, self._context.generation.number)
        self.asks = False

    def drop(self) -> None:
        """Forget what the running step gave: it is dropped, and made again as if for the first time."""
        self.asks, self._first = self.asks or self._first is not None, None
        if self._drawn:
            self._drawn.begin()

    def compare(self, sums: Callable[[], Mapping[int, Tensor]], settings: Row | None) -> None:
        """Compare with what the step gave the first time, if this is the second, and report what differs."""
        first = self._first
        if first is None:
            return
        # In another generation this member has other slices, and a server another part.
        same = self._is_of_this_generation(first)
        for name in differing(first.drawn, self._drawn.take() if self._drawn and same else []):
            line = place_of_reads(self._dataset) if name == DATA else ""
            self._variables.find(VariableFinding(name, line or self._line, kept_draws.CURE, kept_draws.HOW))
        prints = self._prints(sums())
        # A gradient that came once only differs too: of one of two parts that take turns.
        numbers = first.prints.keys() | prints.keys() if same else first.prints.keys() & prints.keys()
        changed = {number for number in numbers if first.prints.get(number) != prints.get(number)}
        if changed:
            alike = same and changed != {BUFFERS}
            self._find(VariableFinding(BODY, self._line, CURE, HOW), self._first_with_sums if alike else None)
        if None not in (first.settings, settings) and first.settings != settings:
            self._variables.find(VariableFinding(BODY, self._line, CURE, HOW_SET))
        self._lines.add(self._line)
        self.compared = True
        self.close()
        self._compared()

    def close(self) -> None:
        """End a comparison that may be running: the loop is over. Idempotent."""
        self.asks, self._first, self.shown = False, None, None
        if self._drawn:
            self._drawn.close()
        self._drawn = self._dataset = None

    @property
    def _first_with_sums(self) -> int | None:
        """The first rank of those that have the sums of all gradients, as this member has; None where it has a part."""
        generation = self._context.generation
        if not generation.exchange.updates or generation.exchange.part is not None:
            return None
        return generation.plan.world if generation.plan.servers else 0

    def _is_of_this_generation(self, first: _FirstTime) -> bool:
        return first.generation == self._context.generation.number

    def _find(self, finding: VariableFinding, first: int | None) -> None:
        """Report what this member alone has found, or keep what the member of rank `first` finds, too."""
        if first is None:
            self._variables.find(finding)
        else:
            self._variables.find_together(finding, first)

    def _prints(self, sums: Mapping[int, Tensor]) -> dict[int, bytes]:
        """Fingerprints of the sums that this member has, and of the buffers that the first shard's slice left here."""
        left = self._context.buffers.encode()
        given = dict(sums) if self._context.generation.exchange.updates else {}
        given |= {} if left is None else {BUFFERS: left}
        return {number: fingerprint(_dense(each)) for number, each in given.items()}

    def _tell(self, *, told: bool) -> None:
        """Have what the body prints from now on be told, or dropped."""
        if told != self._told:
            self._told = told
            self._context.sink.within(told=told)


def _dense(gradient: Tensor) -> Tensor:
    """The gradient; of a table its rows, in the order of their numbers."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def other_loss(computed: Mapping[str, Any] | None, step: int, loss: float | None) -> list[VariableFinding]:
    """The finding that a joiner gives a step another loss than the members that were there before; none where it does
    not, or has computed another step. What a body keeps of its first rows does so, and is not seen where a step is only
    computed twice."""
    if not computed or computed["step"] != step or repr(computed["loss"]) == repr(loss):
        return []
    return [VariableFinding(BODY, computed["line"], CURE_JOINED, HOW_JOINED)]
