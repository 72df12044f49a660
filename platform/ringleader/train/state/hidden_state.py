"""State that forwards change and no step commits: what modules keep outside of parameters and persistent buffers.

Such state goes on from the slices that the same worker had before, and no peer or checkpoint brings it: what it gives
depends on who computed what. It is looked for in a few turns, more and more seldom.
"""

import linecache
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ringleader.program_text.current_line import BELOW
from ringleader.program_text.loop_bodies import text_of
from ringleader.train.between_calls.named_findings import NamedFindings
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.parameters.committed_memory import CommittedMemory
from ringleader.train.state.parameters.tensor_version import version_of

IN_A_ROW = 3
"""Inspected turns in a row in which a value must change to count: tables that grow with the longest text do not. A
fraction, or a tensor that keeps its shape, counts also where turns between leave it as it is: what goes by some rows
alone."""
MANY = 20
"""The number of entries of a dict or a list that are inspected."""
_EVERYBODYS = frozenset(vars(nn.Module()))
"""The attributes of every module: `training`, and the dicts of parameters and hooks."""
_VALUES = (Tensor, str, bytes, int, float, complex, np.generic)


class HiddenState:
    """One member's hidden state.

    Args:
        passes: whether a turn sets the attribute of that name before it reads it.
        shows: whether a module is only filled and shown, and the attribute of that name read by nothing else.

    Attributes:
        found: the attributes that forwards change; healed and checkpointed.
    """

    def __init__(
        self,
        context: MemberContext,
        passes: Callable[[str], bool],
        shows: Callable[[nn.Module, str], bool] = lambda *_: False,
    ) -> None:
        self._context = context
        self._passes = passes
        self._shows = shows
        self._matters = context.same_bits
        self._turns = 0
        self._before: dict[str, SeenValue] | None = None
        self._in_a_row: Counter[str] = Counter()
        self._moved: Counter[str] = Counter()
        self.found = NamedFindings(
            context,
            "forward passes change state that is not committed ({}): register it as a persistent buffer",
        )

    def begin_turn(self) -> None:
        """Note the values before the loop body gets a slice, in the turns that are inspected."""
        self._before = self._look() if self._matters and looked_at(self._turns) else None
        self._turns += 1

    def end_turn(self) -> None:
        """Compare the values once the slice's forward is over."""
        before, self._before = self._before, None
        if before is None:
            return
        now = self._look()
        changed = [path for path, value in now.items() if value.differs(before.get(path))]
        # A new counter: what has not changed in this turn begins again.
        self._in_a_row = Counter({path: self._in_a_row[path] + 1 for path in changed})
        self._moved.update(path for path in changed if now[path].moves(before.get(path)))
        counts = (self._in_a_row, self._moved)
        often = [
            path
            for path in changed
            if path not in self.found and any(count[path] == IN_A_ROW for count in counts)
        ]
        self.found.add(*(path for path in often if self.may_matter(*self._owner(path))))

    def may_matter(self, owner: nn.Module, name: str) -> bool:
        """Whether a later turn may go by what the module has under that name."""
        return not self._passes(name) and may_matter(type(owner), name) and not self._shows(owner, name)

    def _look(self) -> dict[str, "SeenValue"]:
        models = self._context.held.models
        committed = CommittedMemory(models)
        return {
            path: SeenValue.of(value)
            for path, _, value in unkept_values(models)
            if not (isinstance(value, Tensor) and committed.has(value))
        }

    def _owner(self, path: str) -> tuple[nn.Module, str]:
        """The module that has the value, and the attribute's name."""
        part = next(part for each, part, _ in unkept_values(self._context.held.models) if each == path)
        return part, path.partition("[")[0].rpartition(".")[2]


def unkept_values(models: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module, Any]]:
    """The numbers, texts and tensors in modules' attributes, in dicts and lists there, and in buffers that are not
    persistent, each as path, module and value."""
    for number, model in enumerate(models):
        prefix = f"{number}." if len(models) > 1 else ""
        for place, part in model.named_modules(prefix=prefix.rstrip(".")):
            for name, value in _held_by(part):
                if isinstance(value, _VALUES):
                    yield f"{place}.{name}" if place else name, part, value


def places_of(models: Sequence[nn.Module], paths: Collection[str]) -> Iterator[tuple[str, nn.Module]]:
    """Those of the paths that are attributes of a module, each with the module, as `unkept_values` names them."""
    for number, model in enumerate(models if paths else ()):
        prefix = f"{number}" if len(models) > 1 else ""
        for place, part in model.named_modules(prefix=prefix):
            yield from (
                (path, part) for path in paths if "[" not in path and path.rpartition(".")[0] == place
            )


def files_of(kind: type) -> list[str]:
    """The files of a class and its bases; of some there is none."""
    return [_file_of(each.__module__) for each in kind.__mro__ if each not in (nn.Module, object)]


def may_matter(kind: type, name: str) -> bool:
    """Whether what modules, or other objects, of that class keep under this name may affect training. It does not where
    the class is the program's own, and no text of the program reads the name but to show or store it."""
    files = files_of(kind)
    texts = [text_of(file) for file in files if file and not file.startswith(BELOW)]
    key = ("", f".{name}")
    if len(texts) < len(files) or not any(text is not None and key in text.flows.sets for text in texts):
        return True
    # A copy of the modules: one may be imported meanwhile.
    return any(_reads(file, name) for file in {_file_of(module) for module in list(sys.modules)} if file)


def _reads(file: str, name: str) -> bool:
    """Whether a file of the program reads that attribute for more than to show it, or names it in quotes."""
    source = "" if file.startswith(BELOW) else "".join(linecache.getlines(file))
    if f"'{name}'" in source or f'"{name}"' in source:
        return True
    text = text_of(file) if f".{name}" in source else None
    return text is not None and text.flows.may_matter(("", f".{name}"))


def _file_of(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", "") or "")


def _held_by(part: nn.Module) -> Iterable[tuple[str, Any]]:
    for name, value in vars(part).items():
        if name in _EVERYBODYS:
            continue
        yield name, value
        # Plain ones alone: to iterate over a subclass may run the program's code.
        items = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
        yield from ((f"{name}[{key!r}]", item) for key, item in islice(items, MANY))
    for name in part._non_persistent_buffers_set:
        yield name, part._buffers.get(name)


@dataclass(frozen=True, slots=True)
class SeenValue:
    """A value as it was; a tensor is held, so that no other one takes its memory meanwhile.

    Attributes:
        version: the number of changes in place that the tensor had seen.
    """

    value: Any
    version: int = 0

    @classmethod
    def of(cls, value: Any) -> "SeenValue":
        return cls(value, version_of(value) if isinstance(value, Tensor) else 0)

    def stays(self, before: "SeenValue | None") -> bool:
        """Whether this is the very object that was there before, unchanged: not one that is made again and equal."""
        return before is not None and self.value is before.value and self.version == before.version

    def moves(self, before: "SeenValue | None") -> bool:
        """Whether this is another value of the same kind, of those that do not grow with the longest text."""
        if before is None or type(self.value) is not type(before.value):
            return False
        if isinstance(self.value, Tensor):
            return self.value.is_floating_point() and self.value.shape == before.value.shape
        return isinstance(self.value, float | np.floating)

    def differs(self, before: "SeenValue | None") -> bool:
        """Whether this is not what was there before. A tensor that a forward computed anew, with a graph, does not
        count: weights that `weight_norm` makes, losses that layers add. No later slice can go through its graph."""
        if not isinstance(self.value, Tensor):
            return before is None or isinstance(before.value, Tensor) or bool(self.value != before.value)
        if self.value.grad_fn is not None:
            return False
        if before is None or not isinstance(before.value, Tensor):
            return True
        if before.value is self.value:
            return self.version != before.version
        return not _equal(self.value, before.value)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; on the meta device there is nothing that could differ."""
    kinds = [(t.dtype, t.shape, t.device, t.layout) for t in (one, other)]
    return kinds[0] == kinds[1] and (one.is_meta or (one.layout is torch.strided and torch.equal(one, other)))


def looked_at(turn: int) -> bool:
    """Whether a turn, counted from 0, is inspected: the second to the seventh, then three from every power of two on.
    In the first one lazy modules take their shape, and tables are made."""
    return turn > 0 and turn - (1 << turn.bit_length() - 1) < IN_A_ROW
