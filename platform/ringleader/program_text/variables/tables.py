"""Dicts that a program fills as tables, by its text: what stands under a key is made of the key.

`masks.setdefault(n, torch.ones(n, n).tril())` gives the same mask to whoever asks for that length first. Workers fill
such a dict by the rows that come to them, and nothing depends on who filled what.
"""

import ast
from collections import defaultdict

from ringleader.program_text.calls import HARMLESS
from ringleader.program_text.program_scope import ADDS, Key, ProgramScope, assigned_in, name_of
from ringleader.program_text.value_flow import ValueFlow
from ringleader.program_text.variables.settled_values import EvaluationPoint, SettledValues

_MAKERS = frozenset(["dict", "OrderedDict"])
_ASKING = frozenset(["get", "clear", "pop"])
_CHANGING = ADDS | {"sort", "reverse", "remove", "clear", "setdefault"}
_NUMBERS = frozenset(["int", "float", "bool", "str"])


def filled_tables(flow: ValueFlow) -> frozenset[Key]:
    """The variables, and attributes, that are such dicts wherever the files use them."""
    uses: dict[Key, list[tuple[ast.expr, ProgramScope]]] = defaultdict(list)
    for top, scope in flow.scopes.items():
        for node in ast.walk(top):
            if isinstance(node, ast.Name | ast.Attribute) and (key := scope.holder(node)) is not None:
                uses[key].append((node, scope))
    made = _made_as_dicts(flow)
    settled = SettledValues(flow)
    return frozenset(key for key in made if _Table(key, made[key], settled).is_filled_by(uses[key]))


def _made_as_dicts(flow: ValueFlow) -> dict[Key, list[ast.expr]]:
    """The values assigned to variables, where these are empty dicts each time, or None."""
    found: dict[Key, list[ast.expr]] = defaultdict(list)
    for top, scope in flow.scopes.items():
        for node in ast.walk(top):
            for target, value in assigned_in(node):
                key = scope.holder(target) if isinstance(target, ast.Name | ast.Attribute) else None
                if key is not None:
                    found[key].append(value)
    made = {key: values for key, values in found.items() if all(map(_is_empty, values))}
    return {key: values for key, values in made.items() if not all(map(_is_none, values))}


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=[]):
            return True
        case ast.Call(func=called, args=[], keywords=[]):
            called = called.value if isinstance(called, ast.Subscript) else called
            return name_of(called) in _MAKERS
        case ast.Call(func=called, args=[_], keywords=[]):
            called = called.value if isinstance(called, ast.Subscript) else called
            return name_of(called) == "defaultdict"
    return _is_none(value)


class _Table:
    """One dict.

    Args:
        made: what is assigned to it.
    """

    def __init__(self, key: Key, made: list[ast.expr], settled: SettledValues) -> None:
        self._key = key
        self._made = {id(value) for value in made}
        self._factories = [value.args[0] for value in made if isinstance(value, ast.Call) and value.args]
        self._settled = settled
        self._fills = 0

    def is_filled_by(self, uses: list[tuple[ast.expr, ProgramScope]]) -> bool:
        """Whether it is, by all that the text does with it."""
        return all(self._is_fine(*use) for use in uses) and self._fills > 0

    def _is_fine(self, node: ast.expr, scope: ProgramScope) -> bool:
        outer = self._settled.above.get(node)
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return isinstance(outer, ast.Assign | ast.AnnAssign | ast.Tuple | ast.Delete)
        match outer:
            case ast.Subscript(value=value, slice=key) if value is node:
                return self._is_item_fine(outer, key, scope)
            case ast.Attribute(attr=method) if isinstance(call := self._settled.above.get(outer), ast.Call):
                return self._is_method_fine(call, method, scope)
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[held]) if held is node:
                return True
            case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(None)]):
                return True
        return self._is_shown(node)

    def _is_item_fine(self, item: ast.Subscript, key: ast.expr, scope: ProgramScope) -> bool:
        if isinstance(item.ctx, ast.Del):
            return True
        if isinstance(item.ctx, ast.Store):
            statement = self._settled.above.get(item)
            return isinstance(statement, ast.Assign) and self._is_filled(statement.value, key, scope)
        made = all(self._is_made(factory, scope) for factory in self._factories)
        return made and self._is_left_alone(item)

    def _is_method_fine(self, call: ast.Call, method: str, scope: ProgramScope) -> bool:
        if method == "setdefault" and len(call.args) == 2:
            return self._is_filled(call.args[1], call.args[0], scope) and self._is_left_alone(call)
        return (method in _ASKING and self._is_left_alone(call)) or self._is_shown(call)

    def _is_filled(self, value: ast.expr, key: ast.expr, scope: ProgramScope) -> bool:
        self._fills += 1
        return self._settled.is_settled(value, self._settled.place_of(value, scope, key, self._key))

    def _is_made(self, factory: ast.expr, scope: ProgramScope) -> bool:
        """Whether a missing entry is made by something that gives the same each time, and nothing to be filled."""
        self._fills += 1
        if isinstance(factory, ast.Lambda):
            return self._settled.is_settled(factory.body, EvaluationPoint(scope, factory))
        return name_of(factory) in _NUMBERS

    def _is_left_alone(self, entry: ast.expr) -> bool:
        """Whether nothing changes the entry where it is read."""
        outer = self._settled.above.get(entry)
        match outer:
            case ast.Attribute(attr=name):
                if isinstance(self._settled.above.get(outer), ast.Call):
                    in_place = name.endswith("_") and not name.startswith("_")
                    return not in_place and name not in _CHANGING
                return isinstance(outer.ctx, ast.Load) and self._is_left_alone(outer)
            case ast.Subscript(value=value) if value is entry:
                return isinstance(outer.ctx, ast.Load) and self._is_left_alone(outer)
        return True

    def _is_shown(self, node: ast.AST) -> bool:
        return any(
            isinstance(each, ast.Expr)
            and isinstance(each.value, ast.Call)
            and name_of(each.value.func) in HARMLESS
            for each in self._settled.around(node)
        )
