"""The code that runs when a turn calls an object: the forward hooks that the program registers, and nothing of the
program's own in torch's layers."""

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from torch import nn

from ringleader.program_text.program_scope import Function, adds, assigned_in, name_of

_REGISTER = frozenset(["register_forward_hook", "register_forward_pre_hook", "register_module_forward_hook"])
_HOLDING = ("torch.nn.modules.container", "torch.nn.modules.transformer", "torch.nn.parallel")
"""Where torch's modules stand that call others, which they are given."""

Functions = Mapping[str, Sequence[Function]]


class CalledObjects:
    """The objects that turns call, by the program's text.

    Attributes:
        hooks: the functions and lambdas that run with forwards.
        layers: the attributes that only hold layers of torch's own.

    Args:
        body: the statements of the turn.
        functions: the program's functions and methods, by name.
    """

    def __init__(self, body: Sequence[ast.AST], functions: Functions) -> None:
        self._functions = functions
        self._nodes = list(_nodes([*body, *(each for found in functions.values() for each in found)]))
        calls = [node for node in self._nodes if isinstance(node, ast.Call)]
        given = [call.args[0] for call in calls if name_of(call.func) in _REGISTER and call.args]
        self.hooks = list({id(hook): hook for each in given for hook in self._made_by(each, 2)}.values())
        self.layers = _layers(self._nodes)

    def fill(self, attribute: str) -> bool:
        """Whether hooks alone put items into the attribute's value: `self.features[name] = output`. Others may make it
        anew."""
        own = {id(node) for node in _nodes(self.hooks)}
        return not any(_puts_into(node, attribute) for node in self._nodes if id(node) not in own)

    def _made_by(self, hook: ast.expr, depth: int) -> Iterator[Function | ast.Lambda]:
        """The functions that an expression stands for: `self.keep`, `partial(keep, name)`, `self.keeper(name)`."""
        match hook:
            case ast.Lambda():
                yield hook
            case ast.Name() | ast.Attribute():
                yield from self._functions.get(name_of(hook), ())
            case ast.Call(func=called, args=[given, *_]) if name_of(called) == "partial":
                yield from self._made_by(given, depth)
            case ast.Call(func=called) if depth:
                makers = self._functions.get(name_of(called), ())
                returned = [node for node in _nodes(makers) if isinstance(node, ast.Return)]
                for each in returned:
                    yield from self._made_by(each.value, depth - 1) if each.value is not None else ()


def _nodes(tops: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Each node once: functions inside others have names of their own, too."""
    seen: dict[int, ast.AST] = {}
    for top in tops:
        if id(top) not in seen:
            seen |= {id(node): node for node in ast.walk(top)}
    return iter(seen.values())


def _layers(nodes: Collection[ast.AST]) -> frozenset[str]:
    stored = [
        (target.attr, _is_layer(value))
        for node in nodes
        for target, value in assigned_in(node)
        if isinstance(target, ast.Attribute)
    ]
    every = [n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    layers = [name for name, is_layer in stored if is_layer]
    return frozenset(name for name in layers if layers.count(name) == every.count(name))


def _is_layer(value: ast.expr) -> bool:
    """Whether it makes one of torch's layers, which call no other module: `nn.Linear(8, 2)`."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    kind = getattr(nn, value.func.attr, None) if name_of(value.func.value) == "nn" else None
    return isinstance(kind, type) and issubclass(kind, nn.Module) and not kind.__module__.startswith(_HOLDING)


def _puts_into(node: ast.AST, attribute: str) -> bool:
    """Whether the very node changes an item of the attribute's value, or adds one."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return name_of(node.value) == attribute
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        added = adds(node) or node.func.attr in ("setdefault", "__setitem__")
        return added and name_of(node.func.value) == attribute
    return isinstance(node, ast.AugAssign) and name_of(node.target) == attribute
