"""Buffers that are made once and filled anew before they are read, as the slots of a pool: rewritten as plain values.

`slot = pool[turn % 2]`, `slot[:n].copy_(x)` hands nothing on from turn to turn, and which slot it is has no say in
what is read from it.
"""

import ast
from collections.abc import Iterator

from ringleader.program_text.program_scope import OF_COMPREHENSION, Definition, Function, assigned_in, name_of
from ringleader.program_text.statement_order import parents

OF_BUFFER = f"{OF_COMPREHENSION}buffer"
_MAKING = frozenset(["empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like"])
_FILLING = frozenset(["copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"])
_PLACING = frozenset(["pin_memory", "to", "cuda", "share_memory_"])


def name_staging_apart(tree: ast.Module) -> None:
    """Rewrite, in place, what fills a slot as an assignment to a name of its own, and what reads it as a read of that;
    where all functions of the file fill it before they read it."""
    for made, name in [(top, name) for top in tree.body for name in sorted(set(_made_in(top)))]:
        # A variable is that of one outermost function; an attribute is any object's, and a global any function's.
        own = isinstance(made, Definition) and not name.startswith(".")
        tops = [made] if own else [top for top in tree.body if _names(top, name)]
        parts = [_Slots(function, name) for top in tops for function in _functions(top)]
        if all(part.are_filled_first for part in parts):
            for part in parts:
                part.rewrite()


def _made_in(top: ast.AST) -> Iterator[str]:
    """The variables, or attributes (".name"), that get buffers, or lists of buffers, by the only statement that sets
    them."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(top):
        for target, value in assigned_in(node):
            found.setdefault(_own_name(target), []).append(value)
        if isinstance(node, ast.AugAssign):
            found.setdefault(_own_name(node.target), []).append(node.target)
    stored = [n.id for n in ast.walk(top) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for name, values in found.items():
        if name and len(values) == 1 and _is_pool(values[0]) and stored.count(name) <= 1:
            yield name


def _is_pool(value: ast.expr) -> bool:
    match value:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return bool(parts) and all(map(_is_pool, parts))
        case ast.ListComp(elt=part):
            return _is_pool(part)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _PLACING:
            return _is_pool(inner)
        case ast.Call(func=called):
            return name_of(called) in _MAKING
    return False


def _own_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name("self"), attr=name):
            return f".{name}"
    return ""


def _names(top: ast.AST, name: str) -> bool:
    return any(_own_name(node) == name or _is_attribute(node, name) for node in ast.walk(top))


def _is_attribute(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and f".{node.attr}" == name


def _functions(top: ast.AST) -> list[ast.AST]:
    return [node for node in ast.walk(top) if isinstance(node, Function)] or [top]


class _Slots:
    """The uses that one function makes of the buffers of a name.

    Attributes:
        are_filled_first: it reads of each slot only what it has filled.
    """

    def __init__(self, function: ast.AST, name: str) -> None:
        self._function = function
        self._name = name
        self._above = parents(_own_nodes(function))
        used = [node for node in _own_nodes(function) if _own_name(node) == name or _is_attribute(node, name)]
        names = [n for n in used if isinstance(n, ast.Name | ast.Attribute) and self._is_used(n)]
        self._slots = sorted(map(self._whole, names), key=lambda node: (node.lineno, node.col_offset))
        self._filling: ast.stmt | None = None
        self.are_filled_first = not self._slots or self._looks_fine()

    def rewrite(self) -> None:
        if self._slots and self._filling is not None:
            _Rewriting(self._text, self._label, self._filling).visit(self._function)

    @property
    def _label(self) -> str:
        return self._name.lstrip(".") + OF_BUFFER

    def _is_used(self, node: ast.expr) -> bool:
        """Whether it is more than made there, or measured."""
        outer = self._above.get(node)
        measured = isinstance(outer, ast.Call) and name_of(outer.func) == "len"
        return isinstance(getattr(node, "ctx", None), ast.Load) and not measured

    def _whole(self, node: ast.expr) -> ast.expr:
        """The subscript, of a subscript, of the name."""
        while isinstance(outer := self._above.get(node), ast.Subscript) and outer.value is node:
            node = outer
        return node

    def _looks_fine(self) -> bool:
        alias = self._above.get(self._slots[0])
        match alias:
            case ast.Assign(targets=[ast.Name(id=other)], value=value) if value is self._slots[0]:
                stores = [n for n in _own_nodes(self._function) if isinstance(n, ast.Name) and n.id == other]
                if len(self._slots) != 1 or sum(isinstance(n.ctx, ast.Store) for n in stores) != 1:
                    return False
                reads = [self._whole(n) for n in stores if isinstance(n.ctx, ast.Load)]
                self._slots = sorted(reads, key=lambda node: (node.lineno, node.col_offset))
        return bool(self._slots) and self._is_filled_before(self._slots)

    def _is_filled_before(self, slots: list[ast.expr]) -> bool:
        filling, place = self._filled_by(slots[0])
        if filling is None or place is None:
            return False
        self._filling, self._text = filling, ast.unparse(place)
        block = self._above.get(filling)
        texts = [ast.unparse(slot) for slot in slots[1:]]
        inside = {id(node) for node in ast.walk(block)} if block is not None else set()
        once = sum(node in slots for node in ast.walk(filling)) == 1
        same = once and all(text == self._text or text.startswith(f"{self._text}[") for text in texts)
        return same and all(id(slot) in inside for slot in slots) and not isinstance(block, ast.If | ast.Try)

    def _filled_by(self, slot: ast.expr) -> tuple[ast.stmt | None, ast.expr | None]:
        """The statement that fills a slot, or a part of it, and what it fills."""
        outer = self._above.get(slot)
        call = self._above.get(outer) if outer is not None else None
        statement = self._above.get(call) if call is not None else None
        match outer, call, statement:
            case ast.Attribute(attr=method), ast.Call(), ast.Expr() if method in _FILLING:
                return statement, slot
        match outer:
            case ast.Assign(targets=[ast.Subscript(value=value, slice=part) as target]) if target is slot:
                return outer, (value if isinstance(part, ast.Slice) and ast.unparse(part) == ":" else slot)
        return None, None


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside of it."""
    nodes = [function]
    while nodes:
        node = nodes.pop()
        yield node
        nodes += [each for each in ast.iter_child_nodes(node) if not isinstance(each, Definition)]


class _Rewriting(ast.NodeTransformer):
    """Puts a name in the place of a slot."""

    def __init__(self, text: str, label: str, filling: ast.stmt) -> None:
        self._text, self._label, self._filling = text, label, filling

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._filling:
            return self._assignment(node)
        reads = isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), ast.Load)
        if reads and ast.unparse(node) == self._text:
            return ast.copy_location(ast.Name(self._label, ast.Load()), node)
        visited: ast.AST = super().visit(node)
        return visited

    def _assignment(self, node: ast.AST) -> ast.AST:
        given: list[ast.expr] = []
        match node:
            case ast.Expr(value=ast.Call(args=args)):
                given = [*args]
            case ast.Assign(value=value):
                given = [value]
        target = ast.copy_location(ast.Name(self._label, ast.Store()), node)
        value = ast.copy_location(ast.Tuple(given, ast.Load()), node)
        return ast.copy_location(ast.Assign([target], value), node)
