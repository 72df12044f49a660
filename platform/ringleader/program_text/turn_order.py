"""What a turn of a loop's body does first with an attribute: in its own lines and in the functions that these call.

An attribute that a turn sets before it reads it (`self.fake = net(x)`, `net.tau = 2.0 * 0.9**session.global_step`)
hands nothing on to a later turn. One that it reads first is what an earlier turn left.
"""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ringleader.program_text.program_scope import Function, adds, name_of
from ringleader.program_text.statement_order import Loop, given
from ringleader.program_text.turn_paths.attribute_walk import (
    AROUND,
    CALLED,
    AttributeWalk,
    Use,
    entry_of,
    is_sessions,
    properties_of,
)
from ringleader.program_text.turn_paths.called_objects import CalledObjects, Functions
from ringleader.program_text.turn_paths.other_objects import OtherObjects
from ringleader.program_text.value_flow import ValueFlow

BEHIND = "backward"
"""The method of a `torch.autograd.Function` that runs once the loss is made."""
READING = ("__getitem__", "__getitems__", "__next__")
"""The methods that give a turn its rows, before the turn begins."""
_VIEWS = frozenset(["values", "items", "keys", "get"])
"""Methods that read a dict."""
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
        by_hook: a forward hook sets it before the turn reads it, where that hook runs.
    """

    file: int
    line: int
    read: int
    in_forward: bool
    by_hook: bool = False


@dataclass(frozen=True, slots=True)
class TurnUses:
    """The attributes that turns of one loop change.

    Attributes:
        passing: those that a turn, or a forward hook in it, sets before it reads them.
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
    for name, setting in order.changed.items():
        # Any object of torch has these: which of them a line means is not in its text.
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
                # A forward runs once for each slice, so as often as a worker has slices: that is its own finding.
                in_forward = isinstance(top, Function) and top.name == "forward"
                carried[name] = CarriedAttribute(places.get(id(top), 0), line, min(reads), in_forward)
    passing |= order.left_by_hooks()
    return TurnUses(frozenset(passing), carried, [frozenset(each) for each in lines])


def read_for_losses(
    loop: Loop, flows: Sequence[ValueFlow], scopes: Sequence[Collection[str]]
) -> dict[str, CarriedAttribute]:
    """The attributes that go into the losses of a loop's turns as these find them, where no text shows a turn to change
    them, each with a line that reads it; and those that forward hooks set. The arguments are those of `uses_in`."""
    order, _, lines = _order_of(loop, flows, scopes)
    changed = order.changed.keys() | _EVERYBODYS
    return {
        name: CarriedAttribute(number, line, line, in_forward=False, by_hook=name in order.by_hooks)
        for number, flow in enumerate(flows)
        for name, line in _read_for_losses(flow, lines[number])
        if name not in changed and (order.first(name) is Use.READS or name in order.by_hooks)
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
    # Callbacks are registered in the file of the loop: `session.on_commit(f)`.
    callbacks = [name for scope, name in flows[0].callbacks if scope in scopes[0]]
    # A helper of the program that another of its files imports is known by its name.
    imported = frozenset().union(*(flow.imported for flow in flows)) - {n for n, f in functions.items() if f}
    collates = [
        (number, each)
        for number, (flow, reached) in enumerate(zip(flows, scopes, strict=True))
        for name, each in flow.collates
        if name in reached
    ]
    order = TurnOrder(
        [*given(loop), *loop.body],
        functions,
        callbacks,
        imported,
        [each for _, each in collates],
        others=OtherObjects([top for flow in flows for top in flow.scopes]),
    )
    lines = [set(range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)), *(set() for _ in flows[1:])]
    for function in (*order.called, *order.giving):
        lines[places[id(function)]].update(range(function.lineno, (function.end_lineno or 0) + 1))
    for number, each in collates:
        lines[number].update(range(each.lineno, (each.end_lineno or 0) + 1))
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
        giving: the functions that give it its rows.
        by_hooks: of the attributes that were asked for, those that forward hooks set first.

    Args:
        body: what gives each turn its values, and the statements of its body.
        functions: the program's functions and methods, by name.
        callbacks: the names of functions that run once a step is committed.
        imported: names that are no object's.
        collates: what makes batches of rows, as a loop is given it.
        others: the classes of the program.
    """

    def __init__(
        self,
        body: Sequence[ast.AST],
        functions: Functions,
        callbacks: Sequence[str] = (),
        imported: Collection[str] = (),
        collates: Sequence[ast.AST] = (),
        *,
        others: OtherObjects | None = None,
    ) -> None:
        self._body = body
        self._imported = imported
        self._lambdas = [each.body for each in collates if isinstance(each, ast.Lambda)]
        self._functions = functions
        self._callbacks = callbacks
        self._others = others or OtherObjects()
        self._objects = CalledObjects(body, functions)
        self.by_hooks: set[str] = set()
        self.called = self._reached()
        named = [name for each in collates for name in _functions_named(each, functions)]
        self.giving = [each for name in dict.fromkeys((*READING, *named)) for each in functions.get(name, ())]

    @cached_property
    def changed(self) -> dict[str, list[tuple[ast.AST, ast.AST]]]:
        """The attributes that a turn may set, each with the nodes that do it, in which statement or function."""
        found: dict[str, list[tuple[ast.AST, ast.AST]]] = {}
        for top in (*self._body, *self.called):
            for node in ast.walk(top):
                for attribute in _attributes_set(node):
                    found.setdefault(attribute, []).append((top, node))
        return found

    def left_by_hooks(self) -> set[str]:
        """The attributes that only forward hooks set, before the turn reads them."""
        stored = {name for hook in self._objects.hooks for n in ast.walk(hook) for name in _attributes_set(n)}
        for name in stored - self.changed.keys() - _EVERYBODYS:
            self.first(name)
        return self.by_hooks & stored - self.changed.keys()

    def first(self, attribute: str) -> Use | None:
        """What a turn does first with the attribute; None where it may do nothing."""
        found = self._first(attribute)
        if found is Use.READS and attribute in self.changed:
            others = self._others.reads(attribute)
            return self._first(attribute, others) if others else found
        return found

    def _first(self, attribute: str, others: Collection[int] = ()) -> Use | None:
        walk = AttributeWalk(attribute, self._functions, self._imported, self._objects, others=others)
        gives = (*map(walk.touches, self.giving), *(walk.statements([each]) for each in self._lambdas))
        # Rows are made before the turn begins, so what reads for them finds what the last turn left.
        if Use.READS in gives:
            return Use.READS
        found = walk.statements(self._body)
        if found is Use.SETS and walk.by_hook:
            self.by_hooks.add(attribute)
        # To write an entry reads the dict that holds it: that alone hands nothing on.
        if found is Use.READS and self._sets_entries(attribute):
            return Use.SETS
        if found is not None:
            return found
        # Callbacks run behind the commit: what the turn has done first counts before them.
        return next((use for name in self._callbacks if (use := walk.named(name)) is not None), None)

    def _sets_entries(self, attribute: str) -> bool:
        """Whether it is a dict of which a turn sets all entries that anybody uses, by fixed keys, each before it reads
        that one, or all: `self.parts["ce"] = a`, `self.parts["reg"] = b`, `sum(self.parts.values())`."""
        keys = {entry_of(node, attribute) for _, node in self.changed.get(attribute, ())}
        tops = [*self._body, *(each for found in self._functions.values() for each in found)]
        nodes = [node for top in tops for node in ast.walk(top)]
        entries = [n for n in nodes if isinstance(n, ast.Subscript) and entry_of(n, attribute)]
        # Whoever else has the whole dict may change it.
        held = {id(each.value) for each in entries}
        held |= {id(each.value) for each in nodes if isinstance(each, ast.Attribute) and each.attr in _VIEWS}
        loads = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == attribute]
        walks = (
            AttributeWalk(attribute, self._functions, self._imported, self._objects, entry=key)
            for key in keys
        )
        return (
            bool(keys)
            and keys == {entry_of(each, attribute) for each in entries}
            and all(id(each) in held or isinstance(each.ctx, ast.Store) for each in loads)
            and all(walk.statements(self._body) is Use.SETS for walk in walks)
        )

    def is_made_once(self, attribute: str) -> bool:
        """Whether it is set only where it, or a mark that is set with it, was not there yet."""
        tops = (*self._body, *self.called)
        whole = sum(attribute in _attributes_set(node) for top in tops for node in ast.walk(top))
        # `if self.mask is None: self.mask = …`: the first turn makes it, from what any first turn would have.
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
        properties = properties_of(self._functions)
        while new:
            nodes = list(ast.walk(new.pop()))
            calls = [node for node in nodes if isinstance(node, ast.Call) and not is_sessions(node.func)]
            called = {name for call in calls for name in (name_of(call.func), *_spelt(call), *CALLED, BEHIND)}
            if any(isinstance(node, ast.With) for node in nodes):
                called.update(AROUND)
            for name in called | (properties & {getattr(node, "attr", "") for node in nodes}):
                more = [each for each in self._functions.get(name, ()) if id(each) not in found]
                found |= {id(each): each for each in more}
                new += more
        return list(found.values())


def _attributes_set(node: ast.AST) -> Iterator[str]:
    """The attributes that this very node sets, or to whose value it adds."""
    changed: ast.AST = node
    match node:
        case ast.Call(func=ast.Name("setattr"), args=[_, ast.Constant(str(name)), _]):
            yield name
    if isinstance(node, ast.Call):
        changed = node.func.value if adds(node) and isinstance(node.func, ast.Attribute) else node
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


def _functions_named(collate: ast.AST, functions: Functions) -> list[str]:
    """The names of the program's functions in an expression; the method that is called where it names an object."""
    parts = [each for each in ast.walk(collate) if isinstance(each, ast.Name | ast.Attribute)]
    found = [name for name in map(name_of, parts) if functions.get(name)]
    return found if found or isinstance(collate, ast.Lambda | ast.Constant) else ["__call__"]


def _within(test: ast.If) -> Iterator[ast.AST]:
    return (node for statement in test.body for node in ast.walk(statement))


def _asks_for(test: ast.If, attributes: set[str]) -> bool:
    """Whether a condition asks for one of the attributes: `self.mask is None`, `not hasattr(self, "mask")`."""
    asked = [node.attr for node in ast.walk(test.test) if isinstance(node, ast.Attribute)]
    asked += [str(node.value) for node in ast.walk(test.test) if isinstance(node, ast.Constant)]
    return not attributes.isdisjoint(asked)
