"""A walk through a turn, and the functions that it calls, to the first use of an attribute."""

import ast
from collections.abc import Collection, Iterable, Sequence
from enum import Enum

from ringleader.program_text.calls import calls_an_object, is_property, trains
from ringleader.program_text.program_scope import Function, name_of
from ringleader.program_text.statement_order import overwritten
from ringleader.program_text.turn_paths.called_objects import CalledObjects, Functions
from ringleader.program_text.turn_paths.first_use import raises

CALLED = ("forward", "__call__")
"""The methods by which an object is called: the text does not show of which class it is."""
AROUND = ("__enter__", "__exit__")
"""The methods that a `with` block calls."""
_ALWAYS = frozenset(["training", "is_grad_enabled"])
"""What is true in every turn."""


class Use(Enum):
    """The first use of an attribute in a turn."""

    READS = "reads"
    SETS = "sets"


class AttributeWalk:
    """A walk through a turn in the order in which Python goes, for one attribute.

    Attributes:
        by_hook: a hook sets it.

    Args:
        objects: what runs where an object is called.
        entry: of a dict, the key of the only entry that counts; empty for the attribute as a whole.
        others: the nodes that read an attribute of that name of other objects.
    """

    def __init__(
        self,
        attribute: str,
        functions: Functions,
        imported: Collection[str],
        objects: CalledObjects,
        *,
        entry: str = "",
        others: Collection[int] = (),
    ) -> None:
        self.by_hook = False
        self._attribute = attribute
        self._entry = entry
        self._others = others
        self._imported = imported
        self._functions = functions
        self._objects = objects
        self._in_hook = False
        self._known: dict[tuple[int, bool], Use | None] = {}
        self._properties = properties_of(functions)

    def statements(self, nodes: Iterable[ast.AST]) -> Use | None:
        return next((use for node in nodes if (use := self._one(node)) is not None), None)

    def named(self, name: str) -> Use | None:
        """The first use in functions of that name: where they differ, any that reads counts."""
        return self._any_of(self._functions.get(name, ()))

    def _any_of(self, functions: Iterable[Function]) -> Use | None:
        uses = [self.touches(each) for each in functions]
        return Use.READS if Use.READS in uses else (Use.SETS if Use.SETS in uses else None)

    def touches(self, function: Function) -> Use | None:
        place = id(function), self._in_hook
        if place not in self._known:
            self._known[place] = None  # while it is under way
            self._known[place] = self.statements(function.body)
        return self._known[place]

    def _one(self, node: ast.AST) -> Use | None:
        if self._in_hook and isinstance(node, ast.Subscript) and self._is_filled(node):
            return self._one(node.slice) or Use.SETS
        key = entry_of(node, self._attribute) if self._entry else ""
        if key:
            return self._of_entry(node, key)
        return self._emptied(node) or self._entered(node) or self._run(node)

    def _run(self, node: ast.AST) -> Use | None:
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
                own = own or (bool(self._entry) and entry_of(target, self._attribute) == self._entry)
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

    def _of_entry(self, node: ast.AST, key: str) -> Use | None:
        assert isinstance(node, ast.Subscript)
        assert isinstance(node.value, ast.Attribute)
        found = self._one(node.value.value)
        if found is not None or key != self._entry or isinstance(node.ctx, ast.Del):
            return found
        return Use.SETS if isinstance(node.ctx, ast.Store) else Use.READS

    def _emptied(self, node: ast.AST) -> Use | None:
        """The use where the node gives the attribute's value other contents: `self.losses.clear()`."""
        places, values = overwritten(node)
        own = any(isinstance(place, ast.Attribute) and place.attr == self._attribute for place in places)
        if not own or (isinstance(node, ast.Call) and self._functions.get(name_of(node.func))):
            return None
        return self.statements(values) or Use.SETS

    def _entered(self, node: ast.AST) -> Use | None:
        """What a block's `__enter__` and `__exit__` read; of which class the object is the text does not show."""
        held = isinstance(node, ast.With) and any(map(_is_held, node.items))
        return Use.READS if held and Use.READS in map(self.named, AROUND) else None

    def _name(self, node: ast.Attribute | ast.Constant) -> Use | None:
        if isinstance(node, ast.Constant):
            return Use.READS if node.value == self._attribute else None  # hasattr(self, "name")
        inside = self._one(node.value)
        if inside is None and node.attr in self._properties and isinstance(node.ctx, ast.Load):
            inside = self.named(node.attr)
        if inside is not None or node.attr != self._attribute or id(node) in self._others:
            return inside
        return Use.SETS if isinstance(node.ctx, ast.Store) else Use.READS

    def _branches(self, test: ast.expr, body: Sequence[ast.AST], orelse: Sequence[ast.AST]) -> Use | None:
        asked = self._one(test)
        if asked is not None:
            return asked
        uses = [self.statements(body), self.statements(orelse)]
        if Use.READS in uses:
            return Use.READS
        # A branch that raises has no turn behind it.
        going = [use for use, block in zip(uses, (body, orelse), strict=True) if not any(map(raises, block))]
        # In a turn models train, and a loop over modules picks the same ones each time.
        always = any(name_of(n) in _ALWAYS for n in ast.walk(test) if isinstance(n, ast.expr)) or _picks(test)
        return Use.SETS if (uses[0] is Use.SETS and always) or set(going) == {Use.SETS} else None

    def _call(self, node: ast.Call) -> Use | None:
        match node:
            # As a part of a lambda: statements stand as assignments (`PlainAttributes`).
            case ast.Call(func=ast.Name("setattr"), args=[owner, ast.Constant(self._attribute), value]):
                return self.statements((owner, value)) or Use.SETS
        called = node.func
        if isinstance(called, ast.Attribute):
            found = self._one(called.value)
        else:
            found = self._one(called) if not isinstance(called, ast.Name) else None
        found = found or self.statements((*node.args, *(keyword.value for keyword in node.keywords)))
        if found is not None or is_sessions(called):
            return found
        name = name_of(called)
        if functions := called_by(called, self._functions):
            return self._any_of(functions)
        if not calls_an_object(called, self._imported):
            return None
        if isinstance(called, ast.Attribute) and name == self._attribute and id(called) not in self._others:
            return Use.READS
        own = () if isinstance(called, ast.Attribute) and name in self._objects.layers else CALLED
        return next((use for each in own if (use := self.named(each)) is not None), None) or self._hooked()

    def _hooked(self) -> Use | None:
        """The first use in the hooks that run with a forward: any that reads counts."""
        if self._in_hook:
            return None
        self._in_hook = True
        uses = [
            self._one(each.body) if isinstance(each, ast.Lambda) else self.touches(each)
            for each in self._objects.hooks
        ]
        self._in_hook = False
        if Use.READS in uses:
            return Use.READS
        self.by_hook |= Use.SETS in uses
        return Use.SETS if Use.SETS in uses else None

    def _is_filled(self, item: ast.Subscript) -> bool:
        """Whether it sets an item of the attribute's value, into which hooks alone put items."""
        own = isinstance(item.ctx, ast.Store) and getattr(item.value, "attr", "") == self._attribute
        return own and self._objects.fill(self._attribute)


def called_by(called: ast.expr, functions: Functions) -> list[Function]:
    """The functions of the program that a call may run by its name: `net.train()` is no training function's."""
    found = functions.get(name_of(called), ())
    return [each for each in found if not (isinstance(called, ast.Attribute) and trains(each))]


def properties_of(functions: Functions) -> set[str]:
    """The names of the attributes that a function computes."""
    return {name for name, found in functions.items() if any(map(is_property, found))}


def entry_of(node: ast.AST, attribute: str) -> str:
    """The fixed key under which this very node is an entry of the attribute's dict; empty where it is none."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr=name), slice=ast.Constant(value=str(key))):
            return key if name == attribute else ""
    return ""


def is_sessions(called: ast.expr) -> bool:
    """Whether it is a method of the session, whatever functions of the program have its name."""
    return isinstance(called, ast.Attribute) and name_of(called.value) == "session"


def _is_held(item: ast.withitem) -> bool:
    """Whether the block enters an object that is there before it: `with self.scale:`, not `with no_grad():`."""
    return isinstance(item.context_expr, ast.Name | ast.Attribute | ast.Subscript)


def _picks(test: ast.expr) -> bool:
    return isinstance(test, ast.Call) and name_of(test.func) in {"isinstance", "hasattr"}
