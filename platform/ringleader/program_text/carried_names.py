"""Variables that a loop's body carries from one turn to the next, by its text: a turn reads them before it sets them.

Each worker has turns of its own, those of its slices: a value that one turn passes to the next depends on who computes
what.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ringleader.program_text.program_scope import Function, Key, ProgramScope, adds, has_own
from ringleader.program_text.statement_flow import ACTS, MATTERS
from ringleader.program_text.statement_order import Loop, blocks, ends_loop, given, names, parents, span
from ringleader.program_text.step_items import numbered
from ringleader.program_text.turn_paths.first_use import first
from ringleader.program_text.turn_paths.known_tests import UNKNOWN, Settled
from ringleader.program_text.turn_paths.settled_places import SettledPlaces
from ringleader.program_text.value_flow import ValueFlow

LEFT_OUT = frozenset(["clip_grad_norm_", "requires_grad_", "register_", "zero_"])
"""Methods whose name ends like one that changes a value: their effect is seen elsewhere, or needs no turn before."""
_GRADIENTS = frozenset([".grad", ".data", ".requires_grad"])


@dataclass(frozen=True, slots=True)
class CarriedName:
    """A variable that a body changes and that a later turn of it reads, for something that matters.

    Attributes:
        line: the line in which the body changes it.
        read: the line in which a turn reads what an earlier one left.
    """

    key: Key
    line: int
    read: int


def carried(path: Sequence[ast.AST], flows: ValueFlow, scope: ProgramScope) -> Iterator[CarriedName]:
    """The carried variables of the loop at the end of `path`: the nodes around it, outermost first, and itself."""
    loop = path[-1]
    assert isinstance(loop, Loop)
    around = next((node for node in reversed(path[:-1]) if isinstance(node, Function)), path[0])
    body = _Body(loop, around, flows, scope)
    felt = body.felt()
    places = SettledPlaces(path, flows, scope)
    for key, line in body.changed().items():
        reads = felt.get(key, set())
        if not reads or key[1] in _GRADIENTS or body.begins_with_entry(key[1]):
            continue
        if key in body.turns:
            yield CarriedName(key, line, min(reads))
            continue
        own = {load.line for load in flows.loads if load.key == key == load.into and body.has(load.line)}
        read = body.first(key, reads | (own - body.changing(key)), places.for_variable(key[1]))
        if read:
            yield CarriedName(key, line, read)


def carried_by_generator(
    path: Sequence[ast.AST], flows: ValueFlow, scope: ProgramScope
) -> Iterator[CarriedName]:
    """The variables that a generator around the batches carries from one item to the next, in the loop at the end of
    `path`: it reads them, for what it yields, before it sets them. What only counts the items is left out: people show
    it."""
    loop = path[-1]
    assert isinstance(loop, Loop)
    around = next((node for node in reversed(path[:-1]) if isinstance(node, Function)), path[0])
    body = _Body(loop, around, flows, scope)
    felt = body.felt(("()", getattr(around, "name", "")))
    for key, line in body.changed().items():
        reads = felt.get(key, set())
        if not reads or key in body.turns | body.counters:
            continue
        own = {load.line for load in flows.loads if load.key == key == load.into and body.has(load.line)}
        read = body.first(key, reads | (own - body.changing(key)))
        if read:
            yield CarriedName(key, line, read)


def read_first(path: Sequence[ast.AST], flows: ValueFlow, scope: ProgramScope) -> Iterator[tuple[Key, int]]:
    """The variables that go into the losses of the loop at the end of `path` as a turn found them, each with the line
    that reads it: those that a turn reads before it sets them, and those of nested functions that nothing sets there.
    Not those that the text shows a turn to change: `carried` tells of them."""
    loop = path[-1]
    assert isinstance(loop, Loop)
    around = next((node for node in reversed(path[:-1]) if isinstance(node, Function)), path[0])
    body = _Body(loop, around, flows, scope)
    nested = [n for n in ast.walk(around) if isinstance(n, Function | ast.Lambda) and n is not around]
    changed = {key for key, _ in scope.changed_by([*given(loop), *body.nodes])} | body.changed().keys()
    for key in {load.key for load in flows.loads} - changed:
        lines = flows.in_losses_at(key)
        own, others = {line for line in lines if body.has(line)}, _lines_in(nested, key[1], lines)
        read = body.first(key, own) or min(others, default=0)
        if read:
            yield key, read


def _lines_in(nested: Sequence[Function | ast.Lambda], name: str, lines: Sequence[int]) -> list[int]:
    """Those of the lines that nested functions have, where the variable is that of the function around them, and none
    of them sets it before."""
    around = [
        (line, [each for each in nested if each.lineno <= line <= (each.end_lineno or 0)]) for line in lines
    ]
    return [
        line
        for line, within in around
        if within and not any(has_own(each, name) or _sets_first(each, name, line) for each in within)
    ]


def _sets_first(function: Function | ast.Lambda, name: str, line: int) -> bool:
    """Whether a call of the function sets the variable (`nonlocal last`) before it comes to that line."""
    body = [] if isinstance(function, ast.Lambda) else function.body
    # All of its lines: to change the variable (`heat *= 1.1`) is to read it, whatever that line does else.
    return first(body, name, set(range(function.lineno, line + 1))) == 0


def read_by_a_later_step(loop: Loop, key: Key, flows: ValueFlow) -> int | None:
    """The line in which the lines of a step read what those of an earlier one have left, for something that matters; 0
    where none reads it before it sets it, None where steps only go on from it for themselves."""
    lines = range(loop.lineno, span(loop)[1] + 1)
    reads = {line for line in flows.matter_at(key) if line in lines}
    own = {load.line for load in flows.loads if load.key == key == load.into and load.line in lines}
    read = first([*given(loop), *loop.body], key[1], reads | own)
    if not read:
        return 0
    return read if read in reads else min(reads, default=None)


def is_set_anew(loop: Loop, key: Key, flows: ValueFlow) -> bool:
    """Whether all ways through a step give the variable a value that does not go on from its own. Not in a loop with
    phases: who comes in runs the lines before the last one on other weights."""
    if isinstance(loop, ast.While) or any(
        n.arg == "phases" for n in ast.walk(loop.iter) if isinstance(n, ast.keyword)
    ):
        return False
    own = {load.line for load in flows.loads if load.key == key == load.into}
    return first([*given(loop), *loop.body], key[1], own) == 0


def is_of_loop(loop: Loop, key: Key, flows: ValueFlow) -> bool:
    """Whether the variable is used in the loop alone."""
    lines = range(loop.lineno, span(loop)[1] + 1)
    return all(line in lines for line in (*flows.sets[key], *(e.line for e in flows.loads if e.key == key)))


class _Body:
    """The body of one loop.

    Attributes:
        nodes: all that is in it.
        turns: names that number the turns.
        in_place: lines by variable, where a statement changes it without naming a new value.
    """

    def __init__(self, loop: Loop, around: ast.AST, flows: ValueFlow, scope: ProgramScope) -> None:
        self._loop = loop
        self._whole = around
        self._flows = flows
        self._scope = scope
        self.nodes = [node for statement in loop.body for node in ast.walk(statement)]
        self._begin, self._end = loop.lineno, loop.end_lineno or loop.lineno
        self._around = (getattr(around, "lineno", 0), getattr(around, "end_lineno", None) or self._end)
        self.turns = {scope.key(name) for name in [numbered(loop)] if name}
        self.in_place: dict[Key, set[int]] = {}
        self._next: dict[Key, int] = {}
        self._slices: set[Key | None] = set()
        self._look_at_changes(around)
        self._beside = {key: self._read_beside(key, lines) for key, lines in self.in_place.items()}

    def has(self, line: int) -> bool:
        return self._begin <= line <= self._end

    def changed(self) -> dict[Key, int]:
        """The variables that a turn leaves changed, each with a line that does it."""
        changed = self._scope.changed_by(self._loop.body)
        found = {key: line for key, line in changed if self.has(line) and key not in self._slices}
        found |= {key: min(lines) for key, lines in self.in_place.items()}
        return found | self._next | dict.fromkeys(self.turns, self._loop.lineno)

    def felt(self, result: Key | None = None) -> dict[Key, set[int]]:
        """By variable, the lines of the body that read it for something that matters before the loop is over, or for
        `result`."""
        begin, end = self._around
        loads = [load for load in self._flows.loads if self.has(load.line) or not begin <= load.line <= end]
        matter = {MATTERS, ACTS} | ({result} if result is not None else set())
        new = set(matter)
        while new:
            # Against the flow, until nothing is added: a variable matters where it flows into one that does.
            new = {load.key for load in loads if load.into in new} - matter
            matter |= new
        tests = self._lines_of_tests()
        counters = self.counters | self.turns
        found: dict[Key, set[int]] = {}
        for load in loads:
            shown = load.into == MATTERS and load.key in counters and load.line in tests
            own = load.into == load.key or load.line in self.changing(load.key)
            if self.has(load.line) and load.into in matter and not shown and not own:
                found.setdefault(load.key, set()).add(load.line)
        return found

    def changing(self, key: Key) -> set[int]:
        """The lines that change the variable in place and read it for nothing else."""
        return self.in_place.get(key, set()) - self._beside.get(key, set())

    def first(self, key: Key, lines: set[int], settled: Settled = UNKNOWN) -> int:
        """The line of a turn that reads the variable before the turn sets it; 0 where there is none."""
        return first([*given(self._loop), *self._loop.body], key[1], lines, settled) or 0

    def begins_with_entry(self, name: str) -> bool:
        """Whether each turn first sets the only entry that anybody uses of a dict: `sums["loss"] = 0.0`, to which hooks
        add."""
        using = (s for s in self._loop.body if any(getattr(n, "id", "") == name for n in ast.walk(s)))
        match next(using, None):
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(), slice=ast.Constant(entry))], value=value
            ):
                return not names(value, name) and _entries_of(name, self._whole) == {entry}
        return False

    def _look_at_changes(self, around: ast.AST) -> None:
        batches = {self._key(target) for target in _assigned_from(around, _has_batches)}
        self._slices = {
            self._key(part)
            for target in _assigned_from(around, lambda value: self._is_next(value, batches))
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        }
        for node in self.nodes:
            for changed in _changed_in_place(node):
                self._put(changed, changed.lineno)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "next" and node.args:
                key = self._key(node.args[0])
                if key is not None and key not in batches:
                    self._next[key] = node.lineno

    def _is_next(self, value: ast.expr, batches: set[Key | None]) -> bool:
        """Whether it is the next slice."""
        is_next = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "next" and bool(value.args)
        return is_next and self._key(value.args[0]) in batches - {None}  # type: ignore[attr-defined]

    def _read_beside(self, key: Key, lines: set[int]) -> set[int]:
        """Those of the lines in which another statement reads the variable than the one that changes it."""
        simple = [
            n for n in self.nodes if isinstance(n, ast.stmt) and n.lineno in lines and not any(blocks(n))
        ]
        return {n.lineno for n in simple if names(n, key[1]) and key not in self._changed_by(n)}

    def _changed_by(self, statement: ast.stmt) -> set[Key | None]:
        """The variables that the statement changes in place."""
        return {self._key(each) for node in ast.walk(statement) for each in _changed_in_place(node)}

    def _put(self, node: ast.expr, line: int) -> None:
        key = self._key(node)
        if key is not None:
            self.in_place.setdefault(key, set()).add(line)

    def _key(self, node: ast.expr) -> Key | None:
        """The key of a program's variable, or an attribute of `self`; None for a module, or what has no name."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
            return ("", f".{node.attr}")
        key = self._scope.key(node.id) if isinstance(node, ast.Name) else None
        return key if key is not None and (key[0] or key in self._flows.sets) else None

    def _lines_of_tests(self) -> set[int]:
        """The lines of conditions that do not decide on the loop's end."""
        tests = (node for node in self.nodes if isinstance(node, ast.If))
        return {node.test.lineno for node in tests if not ends_loop([*node.body, *node.orelse])}

    @cached_property
    def counters(self) -> set[Key]:
        """Variables to which a number is added: deciding only when something is shown, they do not matter."""
        return {
            key
            for node in self.nodes
            if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant)
            if (key := self._key(node.target)) is not None
        }


def _entries_of(name: str, around: ast.AST) -> set[object]:
    """The fixed keys by which a dict is used there; None among them where it is used in another way."""
    above = parents(ast.walk(around))
    entries: set[object] = set()
    for node in ast.walk(around):
        if isinstance(node, ast.Name) and node.id == name and node in above:
            outer = above[node]
            if isinstance(outer, ast.Subscript) and outer.value is node:
                entries.add(outer.slice.value if isinstance(outer.slice, ast.Constant) else None)
            elif isinstance(node.ctx, ast.Load):
                entries.add(None)
    return entries


def _changed_in_place(node: ast.AST) -> Iterator[ast.expr]:
    """What the node changes without naming a new value: by an item, or by methods that are called for that alone."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield node.value
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return
    call: ast.expr = node.value
    # Down a chain: `x.a_().b_()` changes x.
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        name, adding, call = call.func.attr, adds(call), call.func.value
        # So end the names of torch's methods that change a tensor in place.
        in_place = name.endswith("_") and not name.startswith("_") and name not in LEFT_OUT
        if in_place or adding:
            yield call


def _assigned_from(around: ast.AST, is_such: Callable[[ast.expr], bool]) -> Iterator[ast.expr]:
    """What is given such values there."""
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and is_such(node.value):
            yield from node.targets


def _has_batches(value: ast.expr) -> bool:
    """Whether it is of batches of the session, `iter(session.batches(…))`: each `next` of it is a turn."""
    return any(isinstance(each, ast.Attribute) and each.attr == "batches" for each in ast.walk(value))
