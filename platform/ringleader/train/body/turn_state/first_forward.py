"""State that the first turn in a process makes of its rows, draws or weights, and that stays: no step commits it.

Each worker makes its own, and so does one that joins or resumes. What is made of shapes is alike on all, and a table
for longer texts has another shape: values are compared between members, and with a checkpoint's, by name and shape.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ringleader.program_text.guarded_writes import decides_a_write
from ringleader.program_text.variables.training_reads import line_of, trains_by
from ringleader.train.between_calls.findings import VariableFinding
from ringleader.train.between_calls.named_findings import NamedFindings
from ringleader.train.between_calls.text_comparison import TextComparison, number_of
from ringleader.train.body.turn_state.program_values import program_values
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.buffers import persistent_buffers
from ringleader.train.state.hidden_state import SeenValue, files_of, may_matter, places_of, unkept_values
from ringleader.train.state.parameters.tensor_fingerprint import fingerprint

TURNS = 2
"""The turns that are inspected: one that sets values, and one that leaves them as they are."""
_COMPARED = (Tensor, float, complex, np.floating)
"""What is compared. Whole numbers and texts are sizes and flags."""
MISSING = "is set where scores are computed, and read by training"
MISSING_CURE = (
    "a worker that comes later is given the scores that are recorded, and computes none: set it between two loops, or "
    "register it as a persistent buffer"
)


class FirstForwardState:
    """One member's values that its first turn set. They and the findings are healed and checkpointed.

    Args:
        passes: whether a turn sets the attribute of that name before it reads it.
        report: hears of an attribute that others have.
    """

    def __init__(
        self,
        context: MemberContext,
        passes: Callable[[str], bool],
        report: Callable[[VariableFinding], None],
    ) -> None:
        self._context = context
        self._passes = passes
        self._report = report
        self._matters = context.same_bits
        self._turns = 0
        self._before: dict[str, SeenValue] | None = None
        self._buffers: dict[str, SeenValue] = {}
        self._set: dict[str, SeenValue] = {}
        self._written: set[str] = set()
        self._texts: dict[str, str] = {}
        self._owners: dict[str, tuple[type | None, str]] = {}
        self._there: frozenset[str] = frozenset()
        self._others: dict[str, str] = {}
        self._compared_in = -1
        self._compared: set[str] = set()
        self._found = NamedFindings(
            context,
            "the first forward pass of each worker sets state from its own rows, draws or weights ({}), which is not "
            "committed: set it before the first loop, or register it, with the flag that it is set, as persistent "
            "buffers",
        )

    def begin_turn(self) -> None:
        """Note the values before the loop body gets a slice. Where a turn broke, those before it count."""
        if self._matters and self._turns < TURNS and self._before is None:
            self._before, self._buffers = self._look(), self._look_at_buffers()
            self._there = frozenset(self._before) if not self._turns else self._there

    def end_turn(self) -> None:
        """Note what the first turn set, and find out in the second one which of it stays."""
        before, self._before = self._before, None
        if before is None:
            return
        self._turns += 1
        now, buffers = self._look(), self._look_at_buffers()
        written = {path for path, each in buffers.items() if not each.stays(self._buffers.get(path))}
        if self._turns == 1:
            self._set = {path: each for path, each in now.items() if each.differs(before.get(path))}
            self._written = written
            return
        self._set = {
            path: each for path, each in self._set.items() if path in now and not now[path].differs(each)
        }
        self._find(path for path in self._set if self._marks_the_first(path, written))
        self._find_missing(now)
        # What the first turn set elsewhere, lines between calls may have set here: they ran again with forwards.
        elsewhere = {key.partition(" ")[0] for key in self._others if key.count(" ") == 1}
        self._set |= {path: before[path] for path in elsewhere & before.keys() & now.keys()}
        stay = {path: each for path, each in self._set.items() if now[path].stays(each)}
        self._texts = {
            f"{path} {kind}": text for path, each in stay.items() for kind, text in _read(each.value)
        }
        self._compare()

    @property
    def why_other_bits(self) -> str:
        """The attributes by name, and the cure; empty where nothing was found."""
        return self._found.why_other_bits

    def fingerprint(self) -> int:
        """A number below 2**48 for the values not yet compared in this generation; 0 where there are none."""
        return number_of(self._new())

    def name_differing(self, ranks: Sequence[int]) -> None:
        """Find out which values differ between members of these ranks. All members call this together. Raises
        ExchangeBroken."""
        mine = self._new()
        compared = TextComparison(self._context.generation, mine, ranks)
        self._compared |= mine.keys()
        self._find(key.partition(" ")[0] for key in compared.differing)

    def state(self) -> tuple[dict[str, str], list[str]]:
        return {**self._others, **self._later(), **self._still()}, self._found.state()

    def restore(self, state: tuple[Mapping[str, str], Sequence[str]]) -> None:
        """Take over others' findings, and compare their values with this worker's own; those of both stay."""
        others, found = state
        self._others |= others
        self._found.restore(found)
        self._compare()

    def _find_missing(self, now: Mapping[str, SeenValue]) -> None:
        """Report attributes of modules that have a value elsewhere and none here, behind two turns: scores have set
        them, which who comes later is given as they are recorded."""
        paths = {key.partition(" ")[0] for key in self._others} - now.keys()
        for path, part in places_of(self._context.held.models, paths):
            kind, attribute = type(part), path.rpartition(".")[2]
            reading = any(trains_by(file, attribute) for file in files_of(kind))
            if reading and getattr(part, attribute, None) is None and may_matter(kind, attribute):
                line = next(filter(None, (line_of(file, attribute) for file in files_of(kind))), "")
                self._report(VariableFinding(f"{kind.__name__}.{attribute}", line, MISSING_CURE, MISSING))

    def _marks_the_first(self, path: str, again: set[str]) -> bool:
        """Whether a value says that the first turn has filled the module's buffers: none was written again, or the
        value decides how. Buffers that each forward changes alike, as running means, mark no first one."""
        first, second = (
            {name for where, _, name in (each.rpartition(".") for each in written) if where == _place(path)}
            for written in (self._written, again)
        )
        return bool(first) and (not second or self._decides(path, first))

    def _decides(self, path: str, buffers: set[str]) -> bool:
        kind, attribute = self._owners[path]
        return kind is not None and issubclass(kind, nn.Module) and decides_a_write(kind, attribute, buffers)

    def _compare(self) -> None:
        still = self._still() if self._others else {}
        self._find(key.partition(" ")[0] for key, text in still.items() if self._other(key, text) != text)

    def _other(self, key: str, text: str) -> str:
        """What somebody else's first turn has left under that key, or else a later one in any call; `text` if none."""
        later = (told for name, told in self._others.items() if name.startswith(f"{key} "))
        return self._others.get(key) or next(later, text)

    def _find(self, paths: Iterator[str]) -> None:
        # Asked of what is new alone: whether it may matter is read in the module's source.
        new = (path for path in paths if path not in self._found)
        self._found.add(*(path for path in new if self._may_matter(path)))

    def _may_matter(self, path: str) -> bool:
        kind, attribute = self._owners[path]
        return kind is None or may_matter(kind, attribute)

    def _new(self) -> dict[str, str]:
        generation = self._context.generation.number
        if self._compared_in != generation:
            self._compared_in, self._compared = generation, set()
        return {key: text for key, text in self._still().items() if key not in self._compared}

    def _still(self) -> dict[str, str]:
        """The texts of values that are what the first turn left."""
        now = self._look() if self._texts else {}
        stay = {path for path, each in self._set.items() if path in now and now[path].stays(each)}
        return {key: text for key, text in self._texts.items() if key.partition(" ")[0] in stay}

    def _later(self) -> dict[str, str]:
        """The texts of values that were not there before the first turn, with the call: a later turn may have set them,
        or lines between calls, which give them other values by the next one."""
        # A server has no turns, and scores a row: what it gives to who comes later are all values that it has.
        looks = self._turns or self._context.serves
        now, call = self._look() if looks else {}, self._context.progress.calls.next
        new = {path: each for path, each in now.items() if path not in self._there and path not in self._set}
        return {
            f"{path} {kind} {call}": text for path, each in new.items() for kind, text in _read(each.value)
        }

    def _look(self) -> dict[str, SeenValue]:
        found: dict[str, SeenValue] = {}
        for path, part, value in unkept_values(self._context.held.models):
            name = path.partition("[")[0].rpartition(".")[2]
            found[_key(path)], self._owners[_key(path)] = SeenValue.of(value), (type(part), name)
        for each in program_values(self._context.held):
            path = _key(each.path)
            if path not in found and not self._passes(each.attribute):
                found[path], self._owners[path] = SeenValue.of(each.value), (each.kind, each.attribute)
        return found

    def _look_at_buffers(self) -> dict[str, SeenValue]:
        models = self._context.held.models
        return {
            f"{number}.{name}" if len(models) > 1 else name: SeenValue.of(buffer)
            for number, model in enumerate(models)
            for name, buffer in persistent_buffers(model)
        }


def _key(path: str) -> str:
    """The path without spaces, which part it from its kind: a dict's key may have some."""
    return path.replace(" ", "_")


def _place(path: str) -> str:
    """The path of the module that has the value."""
    return path.partition("[")[0].rpartition(".")[0]


def _read(value: object) -> Iterator[tuple[str, str]]:
    """The value's kind and text, where it is compared."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_meta and value.grad_fn is None:
            shape = "x".join(map(str, value.shape))
            yield f"{value.dtype}/{shape}", fingerprint(value.detach()).hex()
    elif isinstance(value, _COMPARED):
        yield type(value).__name__, repr(value)
