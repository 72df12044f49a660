"""Lines of a loop's body that read or change gradients, by its text: between backward and step there are none to see.

A worker's gradients are those of its own slices until the last of them is exchanged, and applied when they are whole.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from ringleader.adapters.loop_text import loop_at
from ringleader.errors import StepMisuse
from ringleader.train.body.dry_turn import CodeLine

CLIPPING = frozenset(["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"])
_PARAMETERS = frozenset(["parameters", "named_parameters"])


def check_no_gradient_lines(place: CodeLine, hint: str, kept: Collection[str] = ()) -> None:
    """Refuse the loop at `place` if its body, by its text, goes at gradients. Raises StepMisuse, naming the line.

    Args:
        kept: functions that it may call.
    """
    loop = loop_at(place)
    found = next(_lines(loop, kept), None) if loop is not None else None
    if found:
        number, what = found
        raise StepMisuse(
            f"{Path(place[0].co_filename).name}:{number}: {what} in a loop's body: between backward and step no "
            f"worker has the whole gradient, and after the step it is applied.",
            hint=hint,
        )


def _lines(loop: ast.For, kept: Collection[str]) -> Iterator[tuple[int, str]]:
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    parameters = set(_names_of_parameters(nodes))
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "grad" and _is_weight(node.value, parameters):
            yield node.lineno, f"{ast.unparse(node)} is read or changed"
        elif isinstance(node, ast.Call) and _clips(node.func) and _name(node.func) not in kept:
            yield node.lineno, f"{ast.unparse(node.func)} is called"


def _names_of_parameters(nodes: list[ast.AST]) -> Iterator[str]:
    """The names that go through a model's parameters."""
    for node in nodes:
        if isinstance(node, ast.For | ast.comprehension) and _asks_for_parameters(node.iter):
            yield from (name.id for name in ast.walk(node.target) if isinstance(name, ast.Name))


def _asks_for_parameters(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr in _PARAMETERS for each in ast.walk(node))


def _is_weight(node: ast.expr, parameters: set[str]) -> bool:
    """Whether it is a weight: `net.fc.weight`, or a name for one. The gradient of an input is the program's own."""
    return isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id in parameters)


def _name(function: ast.expr) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _clips(function: ast.expr) -> bool:
    """Whether it is a function of torch that clips or measures gradients, not a method of an accelerator."""
    if isinstance(function, ast.Name):
        return function.id in CLIPPING
    return (
        isinstance(function, ast.Attribute) and function.attr in CLIPPING and "utils" in ast.unparse(function)
    )
