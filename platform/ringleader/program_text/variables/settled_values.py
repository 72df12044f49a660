"""Expressions whose value is settled by others: whoever computes them, and whenever, gets the same.

Settled are constants, what libraries compute of settled values, names that are set once, and results of functions of
the program that are made of nothing else. Draws, weights, rows and what a loop changes are not.
"""

import ast
import builtins
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from ringleader.program_text.calls import is_property
from ringleader.program_text.program_scope import (
    ADDS,
    OF_COMPREHENSION,
    Function,
    Key,
    ProgramScope,
    name_of,
    parameters_of,
)
from ringleader.program_text.statement_order import Loop, parents
from ringleader.program_text.value_flow import ValueFlow

_PLACES = frozenset(["device", "dtype"])
_PLACING = frozenset(["to", "type_as", "cuda", "cpu"])
"""Methods that give a tensor another device or type."""
_OF_WEIGHTS = frozenset(["weight", "bias", "grad", "data", "parameters", "state_dict", "loss"])
_UNSETTLED = frozenset(
    ["random", "time", "nn", "uuid", "secrets", "os", "sys", "gc", "input", "open", "next", "id"]
)
"""Modules and functions that draw, or that tell of the machine; modules of `nn` begin with drawn weights."""
_DRAWING = (
    "rand",
    "normal",
    "bernoulli",
    "multinomial",
    "poisson",
    "sample",
    "seed",
    "shuffle",
    "choice",
    "uniform",
)
_BRANCHES = ast.If | ast.While
_PLAIN = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.JoinedStr, ast.FormattedValue, ast.Slice, ast.Starred, ast.Subscript, ast.comprehension),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.operator, ast.unaryop, ast.boolop),
    *(ast.cmpop, ast.expr_context),
)


@dataclass(frozen=True, slots=True)
class Binding:
    """A statement that gives a variable a value, or changes it in place by these."""

    statement: ast.AST
    values: tuple[ast.AST, ...]
    goes_on: bool = False
    """It is made of the earlier value."""


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """The place where an expression is computed.

    Attributes:
        region: the innermost function or loop around it.
        given: texts of expressions that are settled there.
        asked: a variable that may be asked for there.
    """

    scope: ProgramScope
    region: ast.AST
    given: frozenset[str] = frozenset()
    asked: Key | None = None
    under_way: tuple[object, ...] = field(default=())


class SettledValues:
    """The settled values of one file, or several.

    Args:
        flow: what is known of their variables and functions.
    """

    def __init__(self, flow: ValueFlow) -> None:
        self._flow = flow

    @cached_property
    def above(self) -> dict[ast.AST, ast.AST]:
        """The node around each."""
        return parents(node for top in self._flow.scopes for node in ast.walk(top))

    @cached_property
    def _bindings(self) -> dict[Key, list[Binding]]:
        found: dict[Key, list[Binding]] = defaultdict(list)
        for top, scope in self._flow.scopes.items():
            for node in ast.walk(top):
                for target, binding in _bound_by(node):
                    key = scope.holder(target)
                    if key is not None:
                        found[key].append(binding)
        return found

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around one, the innermost first."""
        while (outer := self.above.get(node)) is not None:
            yield outer
            node = outer

    def place_of(self, node: ast.AST, scope: ProgramScope, key: ast.AST, table: Key) -> EvaluationPoint:
        """The place of an expression that is stored in `table` under a key."""
        region = next((n for n in self.around(node) if isinstance(n, Function | Loop)), node)
        place = EvaluationPoint(scope, region, asked=table)
        return replace(place, given=frozenset(self._settled_by(key, place)))

    def is_settled(self, node: ast.AST, place: EvaluationPoint) -> bool:
        if isinstance(node, ast.expr) and ast.unparse(node) in place.given:
            return True
        match node:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return self._is_name_settled(name, place)
            case ast.Attribute():
                return self._is_attribute_settled(node, place)
            case ast.Call():
                return self._is_call_settled(node, place)
        return isinstance(node, _PLAIN) and self._are(ast.iter_child_nodes(node), place)

    def is_function_settled(
        self, function: Function, scope: ProgramScope, under_way: tuple[object, ...] = ()
    ) -> bool:
        """Whether the results of a function are settled by its arguments."""
        # A recursion adds nothing of its own: what its other calls are made of decides.
        if function in under_way:
            return True
        nodes = list(ast.walk(function))
        # A generator's result goes by how far it was read, one that sets outer names by what is read between.
        if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal) for node in nodes):
            return False
        place = EvaluationPoint(
            scope, function, frozenset(parameters_of(function)), under_way=(*under_way, function)
        )
        results = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
        # Which `return` is taken is as much a part of the result as its value.
        tests = [node.test for node in nodes if isinstance(node, _BRANCHES)]
        return bool(results) and self._are([*results, *tests], place)

    def _are(self, nodes: Collection[ast.AST] | Iterator[ast.AST], place: EvaluationPoint) -> bool:
        return all(self.is_settled(node, place) for node in nodes)

    def _settled_by(self, key: ast.AST, place: EvaluationPoint) -> Iterator[str]:
        """The texts of expressions whose values a key tells."""
        yield ast.unparse(key)
        match key:
            case ast.Tuple(elts=parts) | ast.JoinedStr(values=parts):
                for part in parts:
                    yield from self._settled_by(part, place)
            case ast.FormattedValue(value=part) | ast.Call(func=ast.Name("str"), args=[part]):
                yield from self._settled_by(part, place)
            # Only operations that can be undone: `n // 2` is one key for two lengths.
            case ast.BinOp(part, ast.Add() | ast.Sub() | ast.Mult(), ast.Constant()) | ast.BinOp(
                ast.Constant(), ast.Add() | ast.Sub() | ast.Mult(), part
            ):
                yield from self._settled_by(part, place)
            case ast.Name(id=name):
                bindings = self._bindings.get(place.scope.key(name), [])
                statement = bindings[0].statement if len(bindings) == 1 else None
                # A name that is set once stands for its value: `key = (h, w)` tells `h` and `w`.
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    yield from self._settled_by(statement.value, place)

    def _is_name_settled(self, name: str, place: EvaluationPoint) -> bool:
        key = place.scope.key(name)
        if OF_COMPREHENSION in name or key == place.asked or key in place.under_way:
            return True
        bindings = self._bindings.get(key, [])
        # A function that is passed on, not called here, may do anything where it is called.
        if name == "session" or (not bindings and name in self._flow.functions):
            return False
        if not bindings:
            return name not in _UNSETTLED and (name in self._flow.imported or hasattr(builtins, name))
        inside = replace(place, under_way=(*place.under_way, key))
        here = [each for each in bindings if place.region in self.around(each.statement)]
        others = [each for each in bindings if each not in here]
        # Of several that set it elsewhere, which came last depends on when one asks.
        if others and (len(bindings) > 1 or self._may_run_again(others[0])):
            return False
        return all(self._is_binding_settled(each, inside, within=each in here) for each in bindings)

    def _may_run_again(self, binding: Binding) -> bool:
        """Whether a loop of its function is around it, or it is one itself."""
        for node in (binding.statement, *self.around(binding.statement)):
            if isinstance(node, Function):
                return False
            if isinstance(node, Loop):
                return True
        return False

    def _is_binding_settled(self, binding: Binding, place: EvaluationPoint, *, within: bool) -> bool:
        tests: list[ast.AST] = []
        for node in self.around(binding.statement) if within else ():
            if node is place.region:
                break
            tests += [node.test] if isinstance(node, _BRANCHES) else []
            tests += [node.iter] if isinstance(node, ast.For) else []
        return bool(binding.values) and not binding.goes_on and self._are([*binding.values, *tests], place)

    def _is_attribute_settled(self, node: ast.Attribute, place: EvaluationPoint) -> bool:
        owner, base = node.value, _root(node)
        # Where a tensor lies is settled, also for a weight; a weight's values are what training changes.
        if node.attr in _PLACES or node.attr in _OF_WEIGHTS:
            return node.attr in _PLACES
        if isinstance(base, ast.Name) and base.id in self._flow.imported:
            return not _draws(node)
        if isinstance(owner, ast.Name) and owner.id == "session":
            return node.attr == "params"
        if isinstance(owner, ast.Name) and owner.id == "self":
            return self._is_own_attribute_settled(node.attr, place)
        unset = ("", f".{node.attr}") not in self._bindings
        return (unset or self._is_own_attribute_settled(node.attr, place)) and self.is_settled(owner, place)

    def _is_own_attribute_settled(self, name: str, place: EvaluationPoint) -> bool:
        """Whether only `__init__` sets it, by what it is given, or a property computes it."""
        functions = self._flow.functions.get(name, [])
        if functions:
            settled = (self.is_function_settled(f, scope, place.under_way) for f, scope in functions)
            # A bound method holds its object, with all that changes in it.
            return all(is_property(f) for f, _ in functions) and all(settled)
        key = ("", f".{name}")
        bindings = self._bindings.get(key, [])
        if key in place.under_way:
            return True
        return bool(bindings) and all(
            self._is_set_by_init(each, (*place.under_way, key)) for each in bindings
        )

    def _is_set_by_init(self, binding: Binding, under_way: tuple[object, ...]) -> bool:
        around = list(self.around(binding.statement))
        function = next((node for node in around if isinstance(node, Function)), None)
        if function is None:
            return self._are(
                binding.values, EvaluationPoint(ProgramScope(), binding.statement, under_way=under_way)
            )
        scope = self._flow.scopes[around[-1]] if around[-1] in self._flow.scopes else ProgramScope()
        place = EvaluationPoint(scope, function, frozenset(parameters_of(function)), under_way=under_way)
        return function.name == "__init__" and self._is_binding_settled(binding, place, within=True)

    def _is_call_settled(self, node: ast.Call, place: EvaluationPoint) -> bool:
        called = node.func
        name = name_of(called)
        given = [*node.args, *(each.value for each in node.keywords if each.arg not in _PLACES)]
        # The values stay: the device and type that it is given, a weight's as a rule, need not be settled.
        if isinstance(called, ast.Attribute) and name in _PLACING:
            return self.is_settled(called.value, place)
        if _draws(called) or not self._are(given, place):
            return False
        known = self._flow.functions.get(name, [])
        own = isinstance(called, ast.Name) or ast.unparse(called) == f"self.{name}"
        if known and own:
            return all(self.is_function_settled(f, scope, place.under_way) for f, scope in known)
        if isinstance(called, ast.Name):
            # One that the program makes may be a class of modules.
            return name not in _UNSETTLED and (name in self._flow.imported or hasattr(builtins, name))
        return isinstance(called, ast.Attribute) and self.is_settled(called.value, place)


def _bound_by(node: ast.AST) -> Iterator[tuple[ast.expr, Binding]]:
    """The targets that the node itself gives a value, or changes in place."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from ((part, Binding(node, (value, *keys))) for part, keys in _parts(target))
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            yield target, Binding(node, (value,))
        case ast.AugAssign(target=target, value=value):
            yield target, Binding(node, (value,), goes_on=True)
        case ast.For(target=target, iter=source) | ast.AsyncFor(target=target, iter=source):
            yield from ((part, Binding(node, (source,))) for part, _ in _parts(target))
        case ast.arg(arg=name):
            yield ast.Name(name, ast.Load()), Binding(node, ())
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from ((part, Binding(node, ())) for part, _ in _parts(target))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method), args=given)):
            # The convention of torch: `x.add_(y)` changes `x`, `x.__len__()` does not.
            in_place = method.endswith("_") and not method.startswith("_")
            if in_place or (method in ADDS and given):
                drawn = any(word in method for word in _DRAWING)
                yield owner, Binding(node, () if drawn else tuple(given) or (ast.Constant(0),))


def _parts(target: ast.expr) -> Iterator[tuple[ast.expr, tuple[ast.AST, ...]]]:
    """The variables in a target, each with the keys under which it is stored."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _parts(part)
        case ast.Starred(value=part):
            yield from _parts(part)
        case ast.Subscript(slice=key):
            yield target, (key,)
        case _:
            yield target, ()


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _draws(called: ast.expr) -> bool:
    """Whether its name is that of something drawn, or of a module of weights."""
    parts = ast.unparse(called).split(".")
    return not _UNSETTLED.isdisjoint(parts[:-1]) or any(word in parts[-1] for word in _DRAWING)
