"""The reads of an attribute's name in classes of which turns set no such attribute: `self.out` may be a layer in one
class, and in another what each forward leaves."""

import ast
from collections.abc import Sequence
from functools import cached_property

from ringleader.program_text.program_scope import adds, name_of


class OtherObjects:
    """The classes of a program, told apart by which of them set an attribute once their objects are made.

    Args:
        tops: the outermost statements of the program's files.
    """

    def __init__(self, tops: Sequence[ast.AST] = ()) -> None:
        self._tops = tops

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return [node for top in self._tops for node in ast.walk(top)]

    @cached_property
    def _apart(self) -> list[ast.ClassDef]:
        """The classes that share no attributes with another one: none inherits from it, or has it inside."""
        every = [node for node in self._nodes if isinstance(node, ast.ClassDef)]
        names = [each.name for each in every]
        bases = {name_of(base) for each in every for base in each.bases}
        return [
            each
            for each in self._tops
            if isinstance(each, ast.ClassDef)
            and each.name not in bases
            and {name_of(base) for base in each.bases}.isdisjoint(names)
            and not any(isinstance(node, ast.ClassDef) for part in each.body for node in ast.walk(part))
        ]

    def reads(self, attribute: str) -> frozenset[int]:
        """The identities of the nodes that read it of objects that have it from their `__init__` for good.

        Empty where anything but `self.name = value` sets it: the text does not show of which object that is, and a
        value that is changed in place may be another object's, too.
        """
        if any(_changes_otherwise(node, attribute) for node in self._nodes):
            return frozenset()
        return frozenset(
            id(node)
            for each in self._apart
            if not any(_is_own(node, attribute, ast.Store) for node in _behind_init(each))
            for node in ast.walk(each)
            if _is_own(node, attribute, ast.Load)
        )


def _changes_otherwise(node: ast.AST, attribute: str) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == attribute  # setattr(task, "name", value)
    if isinstance(node, ast.AugAssign):
        return _has(node.target, attribute)
    if isinstance(node, ast.Call):
        return adds(node) and _has(node.func, attribute)
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _has(node.value, attribute)
    if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
        return False
    return _has(node, attribute) and not _is_own(node, attribute, ast.Store)


def _has(place: ast.AST, attribute: str) -> bool:
    """Whether a way to what is changed goes by the attribute: `self.temperature.data`, `net.rows[0]`."""
    return any(isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(place))


def _is_own(node: ast.AST, attribute: str, used: type[ast.expr_context]) -> bool:
    match node:
        case ast.Attribute(value=ast.Name("self"), attr=name, ctx=context):
            return name == attribute and isinstance(context, used)
    return False


def _behind_init(each: ast.ClassDef) -> Sequence[ast.AST]:
    """What the class's methods do, but for the one that makes its objects."""
    methods = [part for part in each.body if getattr(part, "name", "") != "__init__"]
    return [node for method in methods for node in ast.walk(method)]
