"""What a turn of a loop's body does first with an attribute: in its own lines and in the functions that these call.

An attribute that a turn sets before it reads it (`self.fake = net(x)`, `net.tau = 2.0 * 0.9**session.global_step`)
hands nothing on to a later turn. One that it reads first is what an earlier turn left.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ringleader.program_text.calls import calls_an_object, is_property
from ringleader.program_text.program_scope import ADDS, Function, name_of
from ringleader.program_text.statement_order import Loop, given
from ringleader.program_text.value_flow import ValueFlow

CALLED = ("forward", "__call__")
"""The methods by which an object is called: the text does not show of which class it is."""
BEHIND = "backward"
"""The method of a `torch.autograd.Function` that runs once the loss is made."""
READING = ("__getitem__", "__getitems__")
"""The methods that give a turn its rows, before the turn begins."""
_ALWAYS = frozenset(["training", "is_grad_enabled"])
"""What is true in every turn."""


class Use(Enum):
    """The first use of an attribute in a turn."""

    READS = "reads"
    SETS = "sets"


Functions = Mapping[str, Sequence[Function]]
_EVERYBODYS = frozenset(["grad", "data", "requires_grad", "training", "state", "param_groups"])
"""Attributes of torch's own, whose changes are seen in other ways."""


@dataclass(frozen=True, slots=True)
class CarriedAttribute:
    """An attribute that a turn changes, and that a later one reads before it sets it.

    Attributes:
        file: the number of the text that has the line which changes it.
        line: that line.
        read: the line that reads it.
        in_forward: a model's forward changes it.
    """

    file: int
    line: int
    read: int
    in_forward: bool


@dataclass(frozen=True, slots=True)
class TurnUses:
    """The attributes that turns of one loop change.

    Attributes:
        passing: those that a turn sets before it reads them.
        carried: those that it reads first, for something that matters.
        lines: by number of the text, the lines of the functions that a turn may call.
    """

    passing: frozenset[str]
    carried: Mapping[str, CarriedAttribute]
    lines: Sequence[frozenset[int]]


def uses_in(loop: Loop, flows: Sequence[ValueFlow], scopes: Sequence[Collection[str]]) -> TurnUses:
    """The uses in the turns of a loop of the first of these files, whose functions may call those of the others.

    Args:
        scopes: for each file, the outermost functions and classes that a turn may reach.
    """
    order, places, lines = _order_of(loop, flows, scopes)
    passing: set[str] = set()
    carried: dict[str, CarriedAttribute] = {}
    for name, setting in order.changed().items():
        use = None if name in _EVERYBODYS else order.first(name)
        if use is Use.SETS:
            passing.add(name)
        elif use is Use.READS:
            key, (top, node) = ("", f".{name}"), setting[0]
            reads = [
                line
                for number, flow in enumerate(flows)
                for line in flow.matter_in_turns_at(key)
                if line in lines[number]
            ]
            if reads and not order.is_made_once(name):
                line = getattr(node, "lineno", 0)
                in_forward = isinstance(top, Function) and top.name == "forward"
                carried[name] = CarriedAttribute(places.get(id(top), 0), line, min(reads), in_forward)
    return TurnUses(frozenset(passing), carried, [frozenset(each) for each in lines])


def read_for_losses(
    loop: Loop, flows: Sequence[ValueFlow], scopes: Sequence[Collection[str]]
) -> dict[str, CarriedAttribute]:
    """The attributes that go into the losses of a loop's turns as these find them, where no text shows a turn to change
    them, each with a line that reads it. The arguments are those of `uses_in`."""
    order, _, lines = _order_of(loop, flows, scopes)
    changed = order.changed().keys() | _EVERYBODYS
    return {
        name: CarriedAttribute(number, line, line, in_forward=False)
        for number, flow in enumerate(flows)
        for name, line in _read_for_losses(flow, lines[number])
        if name not in changed and order.first(name) is Use.READS
    }


def _order_of(
    loop: Loop, flows: Sequence[ValueFlow], scopes: Sequence[Collection[str]]
) -> tuple["TurnOrder", dict[int, int], list[set[int]]]:
    """The order of a turn, the number of each function's text by the function's identity, and the lines of each text
    that a turn may run."""
    functions: dict[str, list[Function]] = {}
    places: dict[int, int] = {}
    for number, (flow, reached) in enumerate(zip(flows, scopes, strict=True)):
        for name, found in flow.functions.items():
            there = [function for function, scope in found if scope.name in reached]
            functions.setdefault(name, []).extend(there)
            places |= dict.fromkeys(map(id, there), number)
    callbacks = [name for scope, name in flows[0].callbacks if scope in scopes[0]]
    # A helper of the program that another of its files imports is known by its name.
    imported = frozenset().union(*(flow.imported for flow in flows)) - {n for n, f in functions.items() if f}
    order = TurnOrder([*given(loop), *loop.body], functions, callbacks, imported)
    lines = [set(range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)), *(set() for _ in flows[1:])]
    for function in (*order.called, *order.giving):
        lines[places[id(function)]].update(range(function.lineno, (function.end_lineno or 0) + 1))
    return order, places, lines


def _read_for_losses(flow: ValueFlow, lines: Collection[int]) -> Iterator[tuple[str, int]]:
    """The attributes that are read for losses in these lines of a file, each with one of them."""
    for key in {load.key for load in flow.loads if load.line in lines and load.key[1].startswith(".")}:
        read = [line for line in flow.in_losses_at(key) if line in lines]
        if read:
            yield key[1][1:], min(read)


class TurnOrder:
    """The turns of one loop.

    Attributes:
        called: the functions that a turn may call.
        giving: the methods that give it its rows.

    Args:
        body: what gives each turn its values, and the statements of its body.
        functions: the program's functions and methods, by name.
        callbacks: the names of functions that run once a step is committed.
        imported: names that are no object's.
    """

    def __init__(
        self,
        body: Sequence[ast.AST],
        functions: Functions,
        callbacks: Sequence[str] = (),
        imported: Collection[str] = (),
    ) -> None:
        self._body = body
        self._imported = imported
        self._functions = functions
        self._callbacks = callbacks
        self.called = self._reached()
        self.giving = [each for name in READING for each in functions.get(name, ())]

    def changed(self) -> dict[str, list[tuple[ast.AST, ast.AST]]]:
        """The attributes that a turn may set, each with the nodes that do it, in which statement or function."""
        found: dict[str, list[tuple[ast.AST, ast.AST]]] = {}
        for top in (*self._body, *self.called):
            for node in ast.walk(top):
                for attribute in _attributes_set(node):
                    found.setdefault(attribute, []).append((top, node))
        return found

    def first(self, attribute: str) -> Use | None:
        """What a turn does first with the attribute; None where it may do nothing."""
        walk = _Walk(attribute, self._functions, self._imported)
        for name in READING:
            if any(walk.touches(each) is Use.READS for each in self._functions.get(name, ())):
                return Use.READS
        found = walk.statements(self._body)
        if found is not None:
            return found
        return next((use for name in self._callbacks if (use := walk.named(name)) is not None), None)

    def is_made_once(self, attribute: str) -> bool:
        """Whether it is set only where it, or a mark that is set with it, was not there yet."""
        tops = (*self._body, *self.called)
        whole = sum(attribute in _attributes_set(node) for top in tops for node in ast.walk(top))
        guarded = {
            id(node)
            for top in tops
            for test in ast.walk(top)
            if isinstance(test, ast.If)
            and _asks_for(test, {each for n in _within(test) for each in _attributes_set(n)})
            for node in _within(test)
            if attribute in _attributes_set(node)
        }
        return 0 < whole == len(guarded)

    def _reached(self) -> list[Function]:
        found: dict[int, Function] = {}
        new: list[ast.AST] = [*self._body]
        new += [each for name in self._callbacks for each in self._functions.get(name, ())]
        found |= {id(each): each for each in new if isinstance(each, Function)}
        properties = _properties(self._functions)
        while new:
            nodes = list(ast.walk(new.pop()))
            calls = [node for node in nodes if isinstance(node, ast.Call) and not _is_sessions(node.func)]
            called = {name for call in calls for name in (name_of(call.func), *_spelt(call), *CALLED, BEHIND)}
            for name in called | (properties & {getattr(node, "attr", "") for node in nodes}):
                more = [each for each in self._functions.get(name, ()) if id(each) not in found]
                found |= {id(each): each for each in more}
                new += more
        return list(found.values())


class _Walk:
    """A walk through a turn in the order in which Python goes, for one attribute."""

    def __init__(self, attribute: str, functions: Functions, imported: Collection[str]) -> None:
        self._attribute = attribute
        self._imported = imported
        self._functions = functions
        self._known: dict[int, Use | None] = {}
        self._properties = _properties(functions)

    def statements(self, nodes: Iterable[ast.AST]) -> Use | None:
        return next((use for node in nodes if (use := self._one(node)) is not None), None)

    def named(self, name: str) -> Use | None:
        """What functions of that name do first: where they differ, any that reads counts."""
        uses = [self.touches(each) for each in self._functions.get(name, ())]
        return Use.READS if Use.READS in uses else (Use.SETS if Use.SETS in uses else None)

    def touches(self, function: Function) -> Use | None:
        if id(function) not in self._known:
            self._known[id(function)] = None  # while it is under way
            self._known[id(function)] = self.statements(function.body)
        return self._known[id(function)]

    def _one(self, node: ast.AST) -> Use | None:
        parts: Iterable[ast.AST] = ast.iter_child_nodes(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda():
                parts = ()  # it runs where it is called
            case ast.Assign(targets=targets, value=value):
                parts = (value, *targets)
            case ast.AnnAssign(target=target, value=value):
                parts = (value, target) if value is not None else ()
            case ast.AugAssign(target=target, value=value):
                own = isinstance(target, ast.Attribute) and target.attr == self._attribute
                return Use.READS if own else self.statements((value, target))
            case ast.If(test=test, body=body, orelse=orelse):
                return self._branches(test, body, orelse)
            case ast.IfExp(test=test, body=first, orelse=second):
                return self._branches(test, [first], [second])
            case ast.For() | ast.AsyncFor():
                parts = (node.iter, node.target, *node.body, *node.orelse)
            case ast.Call():
                return self._call(node)
            case ast.Attribute() | ast.Constant():
                return self._name(node)
        return self.statements(parts)

    def _name(self, node: ast.Attribute | ast.Constant) -> Use | None:
        if isinstance(node, ast.Constant):
            return Use.READS if node.value == self._attribute else None  # hasattr(self, "name")
        inside = self._one(node.value)
        if inside is None and node.attr in self._properties and isinstance(node.ctx, ast.Load):
            inside = self.named(node.attr)
        if inside is not None or node.attr != self._attribute:
            return inside
        return Use.SETS if isinstance(node.ctx, ast.Store) else Use.READS

    def _branches(self, test: ast.expr, body: Sequence[ast.AST], orelse: Sequence[ast.AST]) -> Use | None:
        asked = self._one(test)
        if asked is not None:
            return asked
        uses = [self.statements(body), self.statements(orelse)]
        if Use.READS in uses:
            return Use.READS
        # In a turn models train, and a loop over modules picks the same ones each time.
        always = any(name_of(n) in _ALWAYS for n in ast.walk(test) if isinstance(n, ast.expr)) or _picks(test)
        return Use.SETS if uses[0] is Use.SETS and (always or uses[1] is Use.SETS) else None

    def _call(self, node: ast.Call) -> Use | None:
        called = node.func
        if isinstance(called, ast.Attribute):
            found = self._one(called.value)
        else:
            found = self._one(called) if not isinstance(called, ast.Name) else None
        found = found or self.statements((*node.args, *(keyword.value for keyword in node.keywords)))
        if found is not None or _is_sessions(called):
            return found
        name = name_of(called)
        if self._functions.get(name):
            return self.named(name)
        if not calls_an_object(called, self._imported):
            return None
        if isinstance(called, ast.Attribute) and name == self._attribute:
            return Use.READS
        return next((use for each in CALLED if (use := self.named(each)) is not None), None)


def _properties(functions: Functions) -> set[str]:
    """The names of the attributes that a function computes."""
    return {name for name, found in functions.items() if any(map(is_property, found))}


def _attributes_set(node: ast.AST) -> Iterator[str]:
    """The attributes that this very node sets, or to whose value it adds."""
    changed: ast.AST = node
    if isinstance(node, ast.Call):
        adds = isinstance(node.func, ast.Attribute) and node.func.attr in ADDS and bool(node.args)
        changed = node.func.value if adds and isinstance(node.func, ast.Attribute) else node
    elif not isinstance(getattr(node, "ctx", None), ast.Store):
        return
    # `self.temperature.data -= step` changes what `self.temperature` has.
    while isinstance(changed, ast.Subscript) or (
        isinstance(changed, ast.Attribute) and changed.attr == "data"
    ):
        changed = changed.value
    if isinstance(changed, ast.Attribute):
        yield changed.attr


def _spelt(call: ast.Call) -> Iterator[str]:
    """The texts that it is given: `self.callback("after_batch")` calls methods of that name."""
    return (
        each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def _within(test: ast.If) -> Iterator[ast.AST]:
    return (node for statement in test.body for node in ast.walk(statement))


def _asks_for(test: ast.If, attributes: set[str]) -> bool:
    """Whether a condition asks for one of the attributes: `self.mask is None`, `not hasattr(self, "mask")`."""
    asked = [node.attr for node in ast.walk(test.test) if isinstance(node, ast.Attribute)]
    asked += [str(node.value) for node in ast.walk(test.test) if isinstance(node, ast.Constant)]
    return not attributes.isdisjoint(asked)


def _is_sessions(called: ast.expr) -> bool:
    """Whether it is a method of the session, whatever functions of the program have its name."""
    return isinstance(called, ast.Attribute) and name_of(called.value) == "session"


def _picks(test: ast.expr) -> bool:
    return isinstance(test, ast.Call) and name_of(test.func) in {"isinstance", "hasattr"}
