"""What a path through statements knows of their tests: which held at an `if`, until something changes what it read.

`if use: aux = f(x)` and a later `if use: loss = loss + aux` go the same way in one turn.
"""

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from ringleader.program_text.calls import ENDS
from ringleader.program_text.program_scope import ADDS, captured_by, name_of

Facts = frozenset[tuple[str, bool]]
"""Tests, as text, each with whether it holds."""

_OWN = frozenset(["self", "cls"])
_SESSION = "session"
_ENTRY = "["
"""Stands for an entry that is read of one of the variables."""
_PURE = frozenset(["isinstance", "issubclass", "len", "bool", "int", "float", "abs", "min", "max"])
_WHOLE = frozenset(["enumerate", "reversed", "sorted", "list", "tuple", "zip"])
"""Functions that have items where all that they are given has."""
LEAVES_AS_IT_IS = _PURE | _WHOLE | {"range", "tqdm"}
"""Functions that change nothing of what they are given."""
_OF_MODULES = ("parameters", "children", "modules", "named_parameters", "named_children", "named_modules")
_VIEWS = frozenset([*_OF_MODULES, "items", "keys", "values"])
_TAKES = frozenset(["pop", "popleft", "popitem", "clear", "remove", "discard"])
_PARTS = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Set),
    *(ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Starred),
)
_SIGNS = (ast.cmpop, ast.boolop, ast.unaryop, ast.operator, ast.expr_context)
_INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.IsNot: ast.Is,
    ast.NotEq: ast.Eq,
    ast.NotIn: ast.In,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
}


@dataclass(frozen=True, slots=True)
class Settled:
    """What else may set a variable, or an attribute (".name"), that a test reads.

    Attributes:
        by_calls: whether functions that a turn may call set it.
        by_turns: whether it may have another value in another turn.
        handed: the variables that turns give to calls, which may change what is in them.
    """

    by_calls: Callable[[str], bool]
    by_turns: Callable[[str], bool]
    handed: Collection[str] = ()


UNKNOWN = Settled(lambda place: place.startswith("."), lambda _: True)
"""That any call may set any attribute."""


@dataclass(frozen=True, slots=True)
class Touched:
    """What a statement may change.

    Attributes:
        stored: the variables and attributes that it assigns, or of which it assigns a part.
        receivers: those whose methods it calls.
        given: the variables that calls are given, or that are called.
        calls: whether it calls anything.
        commits: whether it may end a step: the session's attributes are others then.
    """

    stored: frozenset[str]
    receivers: frozenset[str]
    given: frozenset[str]
    calls: bool
    commits: bool


def touched(statement: ast.AST) -> Touched:
    """What the statement may change, with all that is in it."""
    nodes = list(ast.walk(statement))
    calls = [
        node for node in nodes if isinstance(node, ast.Call) and name_of(node.func) not in LEAVES_AS_IT_IS
    ]
    receivers = {
        place
        for call in calls
        if isinstance(call.func, ast.Attribute)
        for place in _chain(call.func.value)
        if place not in _OWN | {_SESSION}
    }
    given = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
    return Touched(
        frozenset(place for node in nodes for place in stored_by(node)),
        frozenset(receivers),
        frozenset(given - _OWN),
        bool(calls),
        _SESSION in given or any(name_of(call.func) in ENDS for call in calls),
    )


def stored_by(node: ast.AST) -> Iterator[str]:
    """The variables and attributes that this very node assigns, or of which it assigns a part, or takes it away."""
    if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
        yield from [node.id] if isinstance(node, ast.Name) else _chain(node)
    match node:
        case ast.ExceptHandler(name=str(name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.pattern():
            yield from filter(None, [captured_by(node)])


def changed_in_place(node: ast.AST) -> Iterator[str]:
    """The variables and attributes of whose value this very node is known to change the contents."""
    if not isinstance(node, ast.Call):
        return
    name = name_of(node.func)
    in_place = name in ADDS | _TAKES or (name.endswith("_") and not name.startswith("_"))
    if isinstance(node.func, ast.Attribute) and in_place:
        yield from _chain(node.func.value)
    elif name == "next" and node.args:
        yield from _chain(node.args[0])


class KnownTests:
    """The tests of some statements.

    Args:
        settled: what else sets what they read.
    """

    def __init__(self, settled: Settled) -> None:
        self._settled = settled
        self._places: dict[str, frozenset[str]] = {}
        self._always: set[str] = set()
        self._touched: dict[ast.AST, Touched] = {}

    def holds(self, test: ast.expr, facts: Facts) -> bool | None:
        """Whether the test holds by what is known; None where it may or may not."""
        if isinstance(test, ast.Constant):
            return bool(test.value)
        text, value = self._test(test)
        return value if (text, True) in facts else (not value if (text, False) in facts else None)

    def with_test(self, test: ast.expr, held: bool, facts: Facts) -> Facts:
        """The same facts, and what the test gave."""
        text, value = self._test(test)
        return facts | {(text, value is held)} if text else facts

    def has_items(self, source: ast.expr, facts: Facts) -> bool | None:
        """Whether a loop over this has a turn at least; None where it may have none."""
        if has_items(source):
            return True
        text = self._items(source)
        return True if (text, True) in facts else (False if (text, False) in facts else None)

    def with_items(self, source: ast.expr, has: bool, facts: Facts) -> Facts:
        """The same facts, and whether a loop over this had turns, where it is so in all turns around it."""
        text = self._items(source)
        return facts | {(text, has)} if text else facts

    def behind(self, node: ast.AST, facts: Facts) -> Facts:
        """What of the facts is still known when the node has run."""
        if not facts:
            return facts
        if node not in self._touched:
            self._touched[node] = touched(node)
        by = self._touched[node]
        return frozenset(
            (text, held) for text, held in facts if text in self._always or not self._changes(by, text)
        )

    def of_all_turns(self, facts: Facts) -> Facts:
        """Those of the facts that hold in all turns alike."""
        return frozenset(fact for fact in facts if fact[0] in self._always)

    def _changes(self, by: Touched, text: str) -> bool:
        places = self._places[text]
        # A method may change its object, a call what it is given, and a commit what the session shows.
        return (
            not places.isdisjoint(by.stored | by.receivers)
            or (_reads_parts(places) and not places.isdisjoint(by.given))
            or (by.calls and any(map(self._settled.by_calls, places)))
            or (by.commits and _SESSION in places)
        )

    def _test(self, test: ast.expr) -> tuple[str, bool]:
        """The test as text, and whether it stands for that or for the contrary; no text where it is not known what it
        reads."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                text, value = self._test(operand)
                return text, not value
            # `x is not None` is the contrary of `x is None`: both are known by the same text.
            case ast.Compare(left=left, ops=[sign], comparators=others) if type(sign) in _INVERSE:
                contrary = ast.Compare(left, [_INVERSE[type(sign)]()], others)
                return self._known(ast.unparse(contrary), _places_of(contrary)), False
        return self._known(ast.unparse(test), _places_of(test)), True

    def _items(self, source: ast.expr) -> str:
        places = _places_of(source)
        if places is not None and not (isinstance(source, ast.Call) and name_of(source.func) == "range"):
            places |= {_ENTRY}
        text = self._known(f"for {ast.unparse(source)}", places)
        return text if text in self._always else ""

    def _known(self, text: str, places: frozenset[str] | None) -> str:
        if places is None:
            return ""
        if text not in self._places:
            self._places[text] = places
            handed = _reads_parts(places) and not places.isdisjoint(self._settled.handed)
            # What nothing sets in any turn is so in all of them, whatever runs in between.
            if _SESSION not in places and not handed and not any(map(self._settled.by_turns, places)):
                self._always.add(text)
        return text


def _reads_parts(places: frozenset[str]) -> bool:
    """Whether it is about attributes or entries, which others may set who have the object."""
    return any(place.startswith((".", _ENTRY)) for place in places)


def has_items(source: ast.expr) -> bool:
    """Whether it is plain that it has items: a literal, a range of constants, the parts of a tensor."""
    plain = False
    match source:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            plain = any(not isinstance(part, ast.Starred) or has_items(part.value) for part in parts)
        case ast.Constant(value=str(text)):
            plain = bool(text)
        case ast.Dict(keys=keys):
            plain = any(key is not None for key in keys)
        case ast.Call(func=ast.Name("range"), args=[_, *_] as bounds):
            plain = _has_numbers(bounds)
        # `x.chunk(4)` and `x.split(8)` have one part at least, also of a tensor without rows.
        case ast.Call(func=ast.Attribute(attr="chunk" | "split"), args=[_, *_]):
            plain = True
        case ast.Call(func=called, args=[_, *_] as given) if name_of(called) in _WHOLE | {"tqdm"}:
            plain = all(map(has_items, given if name_of(called) == "zip" else given[:1]))
    return plain


def _has_numbers(bounds: list[ast.expr]) -> bool:
    try:
        return len(range(*map(ast.literal_eval, bounds))) > 0
    except (ValueError, TypeError):
        return False


def _chain(node: ast.AST) -> Iterator[str]:
    """The variable and the attributes of `a.b[0].c`."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _places_of(node: ast.AST) -> frozenset[str] | None:
    """The variables and attributes that an expression reads, and the session's name for one of its attributes; None
    where it calls something."""
    match node:
        case ast.Attribute(value=ast.Name("session")):
            return frozenset([_SESSION])
        case ast.Name(id=name):
            return frozenset([name])
        case ast.Call(func=ast.Name(name), keywords=[]) if name in LEAVES_AS_IT_IS:
            inside: list[ast.AST] = [*node.args]
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[], keywords=[]) if name in _VIEWS:
            inside = [owner]
        case _ if isinstance(node, _PARTS):
            inside = [each for each in ast.iter_child_nodes(node) if not isinstance(each, _SIGNS)]
        case _:
            return None
    found = [_places_of(each) for each in inside]
    own = {f".{node.attr}"} if isinstance(node, ast.Attribute) else set()
    own |= {_ENTRY} if isinstance(node, ast.Subscript) else set()
    return None if None in found else frozenset(own).union(*(each for each in found if each is not None))
