"""The variables of a program's functions and classes, by its text, and which of them a statement changes."""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy

Key = tuple[str, str]
"""A variable's outermost function or class, and its name. Attributes (".name") and globals have an empty first part."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
ADDS = frozenset(["append", "extend", "insert", "appendleft", "add", "update", "push", "observe", "put"])
OF_COMPREHENSION = "'"
"""What the names of comprehensions' variables have, and no others (`variables/apart.py`)."""
OF_FUNCTION = "@"
"""What those of functions' variables have that another function has, too."""
CONTAINERS = frozenset(
    ["list", "dict", "set", "defaultdict", "Counter", "deque", "OrderedDict", "Queue", "SimpleQueue"]
)


class ProgramScope:
    """The variables of an outermost function or class, whose names nested ones share; else those of the file.

    Attributes:
        name: that of the function or class; empty for the file.
        containers: variables that were made here as a list or a dict.

    Args:
        imported: the names that imports bind: `torch.add(a, b)` adds nothing to torch.
    """

    def __init__(self, top: Definition | None = None, imported: Collection[str] = ()) -> None:
        self._imported = imported
        self.name = "" if top is None else top.name
        self.containers: set[Key] = set()
        self._bound = set() if top is None else _bound_in(top)
        self._local: Mapping[str, str] = {}

    def key(self, name: str) -> Key:
        name = self._local.get(name, name)
        return (self.name, name) if name in self._bound else ("", name)

    def inside(self, local: Mapping[str, str]) -> "ProgramScope":
        """The same scope, seen from a function in which variables have these names in the tree, by those in the
        program."""
        scope = copy(self)
        scope._local = local
        return scope

    def holder(self, node: ast.expr) -> Key | None:
        """The variable that is, or holds, what is changed through this expression."""
        while (inside := _holding(node)) is not None:
            node = inside
        if isinstance(node, ast.Attribute):
            return ("", f".{node.attr}")
        return self.key(node.id) if isinstance(node, ast.Name) else None

    def is_own(self, target: ast.expr) -> bool:
        """Whether what is assigned there stays in an attribute of `self`, or in a list or dict that was made here."""
        base = target.value if isinstance(target, ast.Attribute) else None
        return (isinstance(base, ast.Name) and base.id == "self") or self.holder(target) in self.containers

    def added(self, value: ast.expr) -> Key | None:
        """The variable to which a call adds something."""
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
            return None
        module = isinstance(value.func.value, ast.Name) and value.func.value.id in self._imported
        return self.holder(value.func.value) if adds(value) and not module else None

    def cleared(self, value: ast.expr) -> Key | None:
        """The variable whose items a call drops: it reads nothing of them."""
        match value:
            case ast.Call(func=ast.Attribute(value=place, attr="clear"), args=[], keywords=[]):
                return self.holder(place)
        return None

    def added_by(self, nodes: Iterable[ast.AST]) -> Iterator[Key]:
        """The variables to which these nodes add."""
        for node in nodes:
            if isinstance(node, ast.AugAssign) and (base := self.holder(node.target)) is not None:
                yield base
            elif isinstance(node, ast.Expr) and (added := self.added(node.value)) is not None:
                yield added

    def changed_by(self, statements: Iterable[ast.AST]) -> Iterator[tuple[Key, int]]:
        """The variables that are assigned, or added to, in these statements, each with its line; not those of
        comprehensions, which begin anew each time."""
        for node in (node for statement in statements for node in ast.walk(statement)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if OF_COMPREHENSION not in node.id:
                    yield self.key(node.id), node.lineno
            elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                if (base := self.holder(node)) is not None:
                    yield base, node.lineno
            elif isinstance(node, ast.Expr) and (added := self.added(node.value)) is not None:
                yield added, node.lineno
            elif isinstance(node, ast.pattern) and (name := captured_by(node)):
                yield self.key(name), node.lineno


class PlainAttributes(ast.NodeTransformer):
    """Rewrites `setattr(a, "b", c)`, `getattr(a, "b")` and `vars(a)["b"]` of a tree as what they stand for."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        match node.value:
            case ast.Call(func=ast.Name("setattr"), args=[owner, ast.Constant(str() as name), value]):
                target = ast.copy_location(ast.Attribute(owner, name, ast.Store()), node.value)
                self.generic_visit(target)
                return ast.copy_location(ast.Assign([target], self.visit(value)), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name("getattr"), args=[owner, ast.Constant(str() as name), *default]):
                # A default that is computed is read, too.
                if all(isinstance(each, ast.Constant) for each in default):
                    return ast.copy_location(ast.Attribute(owner, name, ast.Load()), node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Subscript(
                ast.Call(ast.Name("vars"), [owner]), ast.Constant(str() as name)
            ) | ast.Subscript(ast.Attribute(owner, "__dict__"), ast.Constant(str() as name)):
                return ast.copy_location(ast.Attribute(owner, name, node.ctx), node)
        return node


def has_own(function: Function | ast.Lambda, name: str) -> bool:
    """Whether the name is a parameter or a local variable of this very function: what is set in a function or class
    inside it is not."""
    return name in parameters_of(function) | _set_in(function)


def parameters_of(function: Function | ast.Lambda) -> set[str]:
    """The names of its parameters."""
    return {parameter.arg for parameter in parameter_nodes(function)}


def parameter_nodes(function: Function | ast.Lambda) -> list[ast.arg]:
    given = function.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return [parameter for parameter in every if parameter is not None]


def variables_of(function: Function) -> set[str]:
    """The parameters and local variables of this very function, without functions, classes and imports."""
    found = {name for name in parameters_of(function) | _set_in(function) if OF_COMPREHENSION not in name}
    nodes: list[ast.AST] = [*function.body]
    while nodes:
        node = nodes.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.discard(name)
            case ast.alias(name=name, asname=other):
                found.discard(other or name)
        nodes += [] if isinstance(node, Definition | ast.Lambda) else ast.iter_child_nodes(node)
    return found


def assigned_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The pairs of target and value of a statement, if it is an assignment."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from pairs_of(target, node.value)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value


def pairs_of(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The pairs of target and value in an assignment: `a, b = [], {}` are two."""
    series = ast.Tuple | ast.List
    if isinstance(target, series) and isinstance(value, series) and len(target.elts) == len(value.elts):
        for part, its in zip(target.elts, value.elts, strict=True):
            yield from pairs_of(part, its)
    else:
        yield target, value


def captured_by(node: ast.AST) -> str:
    """The name that this very part of a `case` gives a value; empty where it gives none."""
    match node:
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return name
    return ""


def adds(call: ast.Call) -> bool:
    """Whether it adds something to what has the method: `losses.append(loss)`, `logs.update(loss=loss)`."""
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr in ADDS and bool(call.args or call.keywords)
    )


def _holding(node: ast.expr) -> ast.expr | None:
    """What has the expression's value as an item: `logs["loss"]`, `logs.setdefault("loss", [])`."""
    match node:
        case ast.Subscript(value=value) | ast.Call(func=ast.Attribute(value=value, attr="setdefault")):
            return value
    return None


def name_of(node: ast.expr) -> str:
    """The last name of `a.b.name` or `name`; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _bound_in(top: Definition) -> set[str]:
    """The names that the function or class, or one inside it, binds."""
    bound: set[str] = set()
    outside: set[str] = set()
    for node in ast.walk(top):
        match node:
            case ast.Global(names=names):
                outside |= set(names)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound.add(name)
            # The name of the outermost one is bound around it, and not inside.
            case ast.FunctionDef(name=name) if node is not top:
                bound.add(name)
            case ast.ExceptHandler(name=str() as name):
                bound.add(name)
            case ast.pattern():
                bound |= {captured_by(node)} - {""}
    return bound - outside


def _set_in(function: Function | ast.Lambda) -> set[str]:
    found: set[str] = set()
    outside: set[str] = set()
    nodes: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while nodes:
        node = nodes.pop()
        match node:
            case ast.Nonlocal(names=names) | ast.Global(names=names):
                outside |= set(names)
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.ExceptHandler(name=str() as name):
                found.add(name)
            case ast.alias(asname=str() as name) | ast.alias(name=name):
                found.add(name)
            case ast.pattern():
                found |= {captured_by(node)} - {""}
        # What a nested function or class sets is its own.
        nodes += [] if isinstance(node, Definition | ast.Lambda) else ast.iter_child_nodes(node)
    return found - outside
