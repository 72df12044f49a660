"""The variables of a program's functions and classes, by its text, and which of them a statement changes."""

import ast
from collections.abc import Collection, Iterable, Iterator

Key = tuple[str, str]
"""A variable's outermost function or class, and its name. Attributes (".name") and globals have an empty first part."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
ADDS = frozenset(["append", "extend", "insert", "appendleft", "add", "update", "push", "observe", "put"])
OF_COMPREHENSION = "'"
"""What the names of comprehensions' variables have, and no others: `name_apart` gives it to them."""
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

    def key(self, name: str) -> Key:
        return (self.name, name) if name in self._bound else ("", name)

    def holder(self, node: ast.expr) -> Key | None:
        """The variable that is, or holds, what is changed through this expression."""
        while isinstance(node, ast.Subscript):
            node = node.value
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
        return (
            self.holder(value.func.value) if value.func.attr in ADDS and value.args and not module else None
        )

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

    def look_for_containers(self, top: ast.AST) -> None:
        for node in ast.walk(top):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part, value in _each(target, node.value):
                    base = self.holder(part) if _makes_container(value) else None
                    if base is not None:
                        self.containers.add(base)


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
    return name in _arguments(function) | _set_in(function)


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
    return bound - outside


def _each(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The pairs of target and value in an assignment: `a, b = [], {}` are two."""
    series = ast.Tuple | ast.List
    if isinstance(target, series) and isinstance(value, series) and len(target.elts) == len(value.elts):
        for part, its in zip(target.elts, value.elts, strict=True):
            yield from _each(part, its)
    else:
        yield target, value


def _makes_container(value: ast.expr | None) -> bool:
    made = isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp)
    called = value.func if isinstance(value, ast.Call) else None
    kind = called.value if isinstance(called, ast.Subscript) else called  # list[float]()
    return made or (kind is not None and name_of(kind) in CONTAINERS)


def _arguments(function: Function | ast.Lambda) -> set[str]:
    given = function.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    return {argument.arg for argument in every if argument is not None}


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
            case ast.MatchAs(name=str() as name) | ast.alias(asname=str() as name) | ast.alias(name=name):
                found.add(name)
        # What a nested function or class sets is its own.
        nodes += [] if isinstance(node, Definition | ast.Lambda) else ast.iter_child_nodes(node)
    return found - outside
