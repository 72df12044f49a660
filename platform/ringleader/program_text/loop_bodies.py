"""The bodies of a program's loops over batches, in its text, and the variables that come out of them.

Each worker's body sees other slices: the value that it leaves in a variable differs from worker to worker.
"""

import ast
import linecache
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ringleader.parsing import parse
from ringleader.program_text.carried_names import (
    carried,
    carried_by_generator,
    is_of_loop,
    is_set_anew,
    read_by_a_later_step,
    read_first,
)
from ringleader.program_text.program_scope import (
    Function,
    Key,
    PlainAttributes,
    ProgramScope,
    has_own,
)
from ringleader.program_text.statement_order import Loop, binds, blocks, given, span
from ringleader.program_text.step_items import goes_over_batches, imports_ray_train, method_calls
from ringleader.program_text.turn_order import TurnUses, uses_in
from ringleader.program_text.turn_paths.first_use import first, first_behind
from ringleader.program_text.value_flow import ValueFlow
from ringleader.program_text.variables.apart import name_comprehensions_apart, name_functions_apart, plain
from ringleader.program_text.variables.augmented_names import AugmentedNames
from ringleader.program_text.variables.items import name_items_apart
from ringleader.program_text.variables.staging import name_staging_apart
from ringleader.program_text.variables.tables import filled_tables


@dataclass(frozen=True, slots=True)
class EscapingName:
    """A variable that a body changes and that is read behind it, or by a later turn, before it is set again, for
    something that matters.

    Attributes:
        line: the line in which the body changes it.
        read: the line in which it is read.
        scope: the outermost function or class around the loop.
    """

    key: Key
    line: int
    read: int
    scope: str


class SourceText:
    """The text of one file, and its variables.

    Attributes:
        file: its path.
        name: its name.
        tree: the file's syntax tree.
        parted: the same, in which the variables of each function have names of their own.
        inside: variables that bodies change.
        escapes: those of them that are read behind, each once.
        carried: those of them that a later turn goes on from, by the outermost function or class around the loop.
        by_steps: variables that lines after a step of `session.steps` leave to those after a later one, likewise.
        turns: the loops, each with what its turns do with attributes.
        augmented: variables that augmented assignments change.
        changing_globals: globals that functions change.
    """

    def __init__(self, source: str, file: str = "") -> None:
        self.file, self.name = file, Path(file).name
        self.tree = tree = _tree_of(source)
        self.parted = _tree_of(source)
        self._local = name_functions_apart(self.parted)
        name_staging_apart(self.parted)
        entries = name_items_apart(self.parted)
        self._entries = {(top, new): each for top, found in entries.items() for new, each in found.items()}
        self.flows = ValueFlow(self.parted)
        self.augmented = AugmentedNames(self.parted, self.flows)
        self.inside: set[Key] = set()
        self._inside_of: dict[str, set[Key]] = defaultdict(set)
        self.escapes: dict[Key, EscapingName] = {}
        self.carried: dict[Key, EscapingName] = {}
        self.by_steps: dict[Key, EscapingName] = {}
        self._of_one_step: set[Key] = set()
        self.turns: list[tuple[Loop, TurnUses]] = []
        self._paths: dict[Loop, tuple[Sequence[ast.AST], ProgramScope]] = {}
        self._of_ray = imports_ray_train(tree)
        self._kept = _kept(self.flows)
        self._groups = {"param_groups", *_group_names(tree)}
        self._items = _written_items(tree)
        self._spans = [(*span(top), scope) for top, scope in self.flows.scopes.items()]
        within = [each[:2] for each in self._spans if each[2].name]
        self.changing_globals = {
            key[1]
            for key, lines in self.flows.sets.items()
            if not key[0] and not key[1].startswith(".") and _any_within(lines, within)
        }
        self._look_at_loops()

    def _look_at_loops(self) -> None:
        """Find the bodies, then what lines after a step leave to others: those set what no body does."""
        for top, scope in self.flows.scopes.items():
            for path in _loops(top, ()):
                if goes_over_batches(path[-1], top, self.flows.functions, of_ray=self._of_ray):
                    self._body(path, scope)
        for key, escape in list(self.escapes.items()):
            if key in self._passing(escape.scope):
                del self.escapes[key]
        for top, scope in self.flows.scopes.items():
            for path in _loops(top, ()):
                loop = path[-1]
                if isinstance(loop, ast.For) and any(method_calls(loop.iter, "steps")):
                    self._lines_of_steps(loop, scope)

    @cached_property
    def tables(self) -> frozenset[Key]:
        """The dicts that are filled as tables, the same entry by whoever comes first."""
        return filled_tables(self.flows)

    def loop_at(self, line: int) -> Loop | None:
        """The innermost loop over batches around that line."""
        around = [loop for loop, _ in self.turns if loop.lineno <= line <= span(loop)[1]]
        return min(around, key=lambda loop: span(loop)[1] - loop.lineno, default=None)

    @lru_cache(maxsize=64)  # noqa: B019 - as long as the text itself, which is cached
    def carried_by_generator(self, line: int) -> dict[Key, int]:
        """The variables that a generator around batches carries from item to item, each with a line that changes it."""
        paths = [(path, scope) for top, scope in self.flows.scopes.items() for path in _loops(top, ())]
        around = [each for each in paths if each[0][-1].lineno <= line <= span(each[0][-1])[1]]  # type: ignore[attr-defined]
        path, scope = max(around, key=lambda each: len(each[0]), default=((), ProgramScope()))
        found = carried_by_generator(path, self.flows, scope) if path else ()
        return {each.key: each.line for each in found}

    @lru_cache(maxsize=64)  # noqa: B019 - as long as the text itself, which is cached
    def read_first(self, line: int) -> dict[Key, int]:
        """The variables that go into losses as the turns of the loop around that line find them, each with a line."""
        loop = self.loop_at(line)
        if loop is None:
            return {}
        path, scope = self._paths[loop]
        return dict(read_first(path, self.flows, scope))

    @lru_cache(maxsize=64)  # noqa: B019 - as long as the text itself, which is cached
    def makes_anew(self, key: Key, line: int) -> bool:
        """Whether each turn of the loop around that line names another value so before it reads the variable."""
        loop = self.loop_at(line)
        nodes = [] if loop is None else [*given(loop), *loop.body]
        inside = (each for node in nodes for each in ast.walk(node))
        lines = {each.lineno for each in inside if isinstance(each, ast.Name) and each.id == key[1]}
        return first(nodes, key[1], lines) == 0

    def only_shown(self, key: Key, line: int = 0) -> bool:
        """Whether bodies change the variable, a meter for example, and nothing that matters reads it from them.

        Args:
            line: of the program whose bodies count; 0 for all of the file.
        """
        if key not in self.inside or key in self.escapes or key in self.carried:
            return False
        scope = self.scope_at(line).name if line else ""
        return not scope or any(key in self._inside_of[name] for name in {scope, *self.together_with(scope)})

    def scope_at(self, line: int) -> ProgramScope:
        """The scope of the outermost function or class there, as the innermost function has its names."""
        scope = next((scope for first, last, scope in self._spans if first <= line <= last), ProgramScope())
        local = [each.names for each in self._local if each.first <= line <= each.last]
        return scope.inside({name: new for names in local for name, new in names.items()}) if local else scope

    def entries_of(self, key: Key) -> dict[str, Key]:
        """The entries of a dict that are variables of their own."""
        found = ((each, entry) for entry, each in self._entries.items() if entry[0] == key[0])
        return {each.entry: entry for each, entry in found if each.name == key[1]}

    def find(self, key: Key, variables: Mapping[str, Any], line: int) -> tuple[str, Any]:
        """The name of a variable, or of an entry of one, and its value, in a function that runs at that line.

        Raises:
            KeyError: the function has no such variable now.
        """
        entry = self._entries.get(key)
        name = plain(key[1] if entry is None else entry.name)
        if self.scope_at(line).key(name) != (key if entry is None else (key[0], entry.name)):
            raise KeyError(name)
        value = variables[name]
        return (name, value) if entry is None else (f"{name}[{entry.entry!r}]", value[entry.entry])

    def compared(self, key: Key, line: int = 0) -> bool:
        """Whether a member that comes to a call in that line must have the value that the others had there."""
        if (
            not self.flows.matters(key)
            or self.only_shown(key, line)
            or key in self._of_one_step | self.tables
        ):
            return False
        return not self.passes(key, line)

    def passes(self, key: Key, line: int) -> bool:
        """Whether every turn of the program around that line sets the attribute before it reads it."""
        return not key[0] and key in self._passing(self.scope_at(line).name)

    def carried_in(self, scope: ProgramScope) -> list[Key]:
        """The variables that bodies in that function or class carry from turn to turn."""
        return [key for key, carry in self.carried.items() if carry.scope == scope.name]

    def line_of(self, key: Key, before: int) -> int:
        """The line that set it, the last one above `before`."""
        lines = sorted(self.flows.sets.get(key, []))
        above = [line for line in lines if line <= before]
        return above[-1] if above else (lines[-1] if lines else before)

    def line_of_item(self, item: str, before: int) -> int:
        """The line that stores under that key in the function of line `before`, the last one above it, or below; 0
        where there is none."""
        first, last = next((each[:2] for each in self._spans if each[0] <= before <= each[1]), (0, 0))
        lines = sorted(line for name, line in self._items if name == item and first <= line <= last)
        return max((line for line in lines if line <= before), default=lines[-1] if lines else 0)

    def reached_from(self, scopes: set[str]) -> set[str]:
        """These outermost functions and classes, and those of the file that they call."""
        found, new = set(scopes), list(scopes)
        tops = {scope.name: top for top, scope in self.flows.scopes.items() if scope.name}
        while new:
            top = tops.get(new.pop())
            names = {n.id for n in ast.walk(top) if isinstance(n, ast.Name)} if top is not None else set()
            more = (names & tops.keys()) - found
            found |= more
            new += more
        return found

    def together_with(self, scope: str) -> set[str]:
        """The outermost functions and classes that may run in one program with this one: it calls them, or who calls it
        does."""
        tops = {each.name for each in self.flows.scopes.values()}
        callers = [reached for top in tops if scope in (reached := self.reached_from({top}))]
        return set().union(*callers)

    def names_in(self, scopes: set[str]) -> set[str]:
        """All names that these outermost functions and classes use."""
        tops = [top for top, scope in self.flows.scopes.items() if scope.name in scopes]
        return {node.id for top in tops for node in ast.walk(top) if isinstance(node, ast.Name)}

    @lru_cache(maxsize=64)  # noqa: B019 - as long as the text itself, which is cached
    def _passing(self, scope: str) -> frozenset[Key]:
        """The attributes that every turn of a program sets before it reads them, and that no other lines of it read."""
        together = self.together_with(scope)
        turns = [uses for loop, uses in self.turns if self.scope_at(loop.lineno).name in together]
        names = frozenset().union(*(uses.passing for uses in turns)) if turns else frozenset()
        names -= {name for uses in turns for name in uses.carried}
        inside = frozenset().union(*(uses.lines[0] for uses in turns)) if turns else frozenset()
        keys = {("", f".{name}") for name in names}
        return frozenset(
            key
            for key in keys
            if all(
                line in inside for line in self.flows.matter_at(key) if self.scope_at(line).name in together
            )
        )

    def _body(self, path: Sequence[ast.AST], scope: ProgramScope) -> None:
        loop = path[-1]
        assert isinstance(loop, Loop)
        self.turns.append((loop, uses_in(loop, [self.flows], [self.together_with(scope.name)])))
        self._paths[loop] = path, scope
        for key, line in scope.changed_by([*given(loop), *loop.body]):
            self.inside.add(key)
            self._inside_of[scope.name].add(key)
            if self._is_kept(key, scope) or key in self.tables:
                continue  # rolled back and healed with the weights, or the same on all members
            read = _behind(path, key, self.flows)
            if read and key not in self.escapes:
                self.escapes[key] = EscapingName(key, line, read, scope.name)

        for carry in carried(path, self.flows, scope):
            if not self._is_kept(carry.key, scope) and carry.key not in self.tables:
                self.inside.add(carry.key)
                self._inside_of[scope.name].add(carry.key)
                self.carried.setdefault(
                    carry.key, EscapingName(carry.key, carry.line, carry.read, scope.name)
                )

    def _lines_of_steps(self, loop: Loop, scope: ProgramScope) -> None:
        """Tell apart what lines after a step leave to those after a later one, and what each step makes for itself."""
        for key, line in scope.changed_by([*given(loop), *loop.body]):
            if key in self.inside or self._is_kept(key, scope):
                continue
            read = read_by_a_later_step(loop, key, self.flows)
            if read and not key[1].startswith("."):  # an attribute may be one of a kept object
                if not is_set_anew(loop, key, self.flows):
                    self.by_steps.setdefault(key, EscapingName(key, line, read, scope.name))
            elif read == 0 and key[0] and is_of_loop(loop, key, self.flows):
                self._of_one_step.add(key)

    def _is_kept(self, key: Key, scope: ProgramScope) -> bool:
        """Whether the session keeps the variable, or it names parameter groups. The keeper is the function or class
        itself, one that it calls, or one that calls it: other programs of the file may have other variables of that
        name."""
        name = plain(key[1].lstrip("."))
        keepers = {keeper for keeper, kept in self._kept if kept == name}
        if not keepers or name in self._groups:
            return name in self._groups
        return not keepers.isdisjoint(self.together_with(scope.name))


def _behind(path: Sequence[ast.AST], key: Key, flows: ValueFlow) -> int:
    """The line behind the loop in which the variable is read; 0 where it is not, or is set before."""
    begin, end = span(path[-1])
    outside = [line for line in flows.matter_at(key) if not begin <= line <= end]
    if not outside:
        return 0
    if not key[0]:
        return outside[0]  # an attribute, or a global: from anywhere
    functions = [node for node in path if isinstance(node, Function)]
    nested = [node for node in ast.walk(functions[-1]) if isinstance(node, Function)] if functions else []
    nested = [node for node in nested if node is not functions[-1]]
    read = {load.line for load in flows.loads if load.key == key != load.into}
    for line in list(outside):
        within = [inner for inner in nested if inner.lineno <= line <= (inner.end_lineno or 0)]
        # What it reads for itself alone matters where somebody else reads it.
        if line in read and within and not any(has_own(inner, key[1]) for inner in within):
            return line  # a closure, called who knows when
        if within:
            outside.remove(line)
    return _first_behind(path, key[1], set(outside))


def _written_items(tree: ast.Module) -> list[tuple[Any, int]]:
    """The constants under which items are assigned (`group["lr"] = …`), each with its line."""
    return [
        (node.slice.value, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
    ]


_READING = threading.Lock()


def text_of(file: str) -> SourceText | None:
    """The text of a file; None where there is none, as behind `exec`."""
    with _READING:  # once, also for members that are threads
        return _read_text(file)


@lru_cache(maxsize=64)
def _read_text(file: str) -> SourceText | None:
    source = "".join(linecache.getlines(file))
    try:
        return SourceText(source, file) if source else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _tree_of(source: str) -> ast.Module:
    tree: ast.Module = PlainAttributes().visit(parse(source))
    name_comprehensions_apart(tree)
    return tree


def _kept(flows: ValueFlow) -> set[tuple[str, str]]:
    """The names that the program gives to `session.keep`, each with the outermost function or class that does."""
    return {
        (scope.name, plain(ast.unparse(call.args[1]).rpartition(".")[2]))
        for top, scope in flows.scopes.items()
        for call in ast.walk(top)
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "keep" and len(call.args) == 2
    }


def _group_names(tree: ast.AST) -> set[str]:
    """The variables that are given parameter groups."""
    return {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.For) and _names_groups(node)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }


def _names_groups(node: ast.Assign | ast.For) -> bool:
    """Whether it gives names to parameter groups: settings that a body changes there count for all members."""
    value = node.value if isinstance(node, ast.Assign) else node.iter
    value = value.value if isinstance(value, ast.Subscript) else value
    return isinstance(value, ast.Attribute) and value.attr == "param_groups"


def _loops(node: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, ...]]:
    """Every `for` with the nodes around it, outermost first."""
    path = (*above, node)
    if isinstance(node, Loop):
        yield path
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _loops(child, path)


def _any_within(lines: Sequence[int], spans: Sequence[tuple[int, int]]) -> bool:
    return any(first <= line <= last for line in lines for first, last in spans)


def _first_behind(path: Sequence[ast.AST], name: str, lines: set[int]) -> int:
    """The first read behind the loop: out of one block after the other, and through outer loops from their top."""
    for node, outer in zip(reversed(path[1:]), reversed(path[:-1]), strict=True):
        block = next((block for block in blocks(outer) if node in block), None)
        if block is None:
            continue
        at = block.index(node)
        found = first_behind(block[at + 1 :], name, lines)
        if found is not None:
            return found
        if isinstance(outer, Loop):
            again = first([*_sets_of_header(outer, name), *block[:at]], name, lines)
            if again:
                return again
        if isinstance(outer, Function):
            return 0
    return 0


def _sets_of_header(loop: ast.AST, name: str) -> list[ast.AST]:
    return [each for each in given(loop) if binds(each, name)] if isinstance(loop, Loop) else []
