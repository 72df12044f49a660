"""The turns of loops in a program's text: which loops go over batches, the items of those over `session.steps`, and the
end of any turn.

A loop over slices has what one worker computes, and the loops around it have what all members run.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence

from ringleader.program_text.program_scope import Definition, Function, ProgramScope, name_of
from ringleader.program_text.statement_order import COMPREHENSIONS, Loop
from ringleader.program_text.turn_paths.first_use import first

PREPARING = frozenset(["prepare", "setup_dataloaders"])
"""The methods of Accelerate and Fabric that give a loader whose loops are the session's."""
Functions = Mapping[str, Sequence[tuple[Function, ProgramScope]]]


def method_calls(node: ast.AST, name: str) -> Iterator[tuple[ast.Call, str]]:
    """The calls of a method of that name below the node, each with the text of what has it."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == name:
            yield each, ast.unparse(each.func.value)


def goes_over_slices(source: ast.expr, top: ast.AST) -> bool:
    """Whether a loop over `source` goes over the slices of a step.

    Args:
        top: the outermost function or class around the loop.
    """
    slices, phases = _names(top)
    picked = (node.value for node in ast.walk(source) if isinstance(node, ast.Subscript))
    return bool(_named(source) & slices) or any(_named(node) & phases for node in picked)


def ends_turns(body: Sequence[ast.AST], functions: Functions, *, called: bool = True) -> bool:
    """Whether these lines, but for loops and comprehensions in them, end a turn by `session.step(…)`, or call functions
    that do: of a loop that has them the batches may be a parameter of the function around it.

    Args:
        functions: those of the file, by name.
        called: look at the functions that they call, too.
    """
    nodes: list[ast.AST] = [*body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Call):
            owner = name_of(getattr(node.func, "value", node))
            if owner == "session" and name_of(node.func) == "step":
                return True
            own = isinstance(node.func, ast.Name) or owner == "self"
            inner = functions.get(name_of(node.func), []) if called and own else []
            if inner and all(ends_turns(each.body, functions, called=False) for each, _ in inner):
                return True
        if not isinstance(node, Loop | Definition | ast.Lambda | COMPREHENSIONS):
            nodes += ast.iter_child_nodes(node)
    return False


def numbered(loop: Loop) -> str:
    """The name of the number that `enumerate` gives to each turn, where a turn reads that number; "" without.

    `it = session.global_step` as a turn's first line makes another variable of the name.
    """
    if isinstance(loop, ast.While) or not isinstance(loop.target, ast.Tuple):
        return ""
    number = getattr(loop.target.elts[0], "id", "")
    if not number or not isinstance(loop.iter, ast.Call) or name_of(loop.iter.func) != "enumerate":
        return ""
    inside = (node for statement in loop.body for node in ast.walk(statement))
    lines = {node.lineno for node in inside if isinstance(node, ast.Name) and node.id == number}
    return number if first(loop.body, number, lines) else ""


def goes_over_batches(loop: ast.AST, top: ast.AST, functions: Functions, *, of_ray: bool) -> bool:
    """Whether the turns of a loop are those of slices, by what it goes over or by what ends them.

    Args:
        top: the outermost function or class around it.
        functions: those of the file, by name.
        of_ray: functions of the file may be Ray Train's.
    """
    assert isinstance(loop, Loop)
    if isinstance(loop, ast.While):  # over an iterator, by next(…)
        return ends_turns(loop.body, functions)
    names = {node.id for node in ast.walk(loop.iter) if isinstance(node, ast.Name)}
    assigned = [
        node
        for node in ast.walk(top)
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") in names for t in node.targets)
    ]
    if goes_over_slices(loop.iter, top) or ends_turns(loop.body, functions):
        return True
    sources = (loop.iter, *(node.value for node in assigned))
    if any(_gives_batches(source, functions) for source in sources) or _is_prepared(loop, names, top):
        return True
    return of_ray and _has_backward(loop.body)


def imports_ray_train(tree: ast.AST) -> bool:
    """Whether a function of the file may be one of Ray Train, whose loops go over loaders."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [f"{getattr(node, 'module', '')}.{each.name}" for node in imports for each in node.names]
    return any(name.lstrip(".").startswith(("ray.train", "None.ray.train")) for name in names)


def _names(top: ast.AST) -> tuple[set[str], set[str]]:
    """The variables that are slices of a step, and those that are several phases of one."""
    slices: set[str] = set()
    phases: set[str] = set()
    loops = [node for node in ast.walk(top) if isinstance(node, ast.For | ast.AsyncFor)]
    for loop in loops:
        for call, _ in method_calls(loop.iter, "steps"):
            several = {
                n for node in ast.walk(loop.target) if isinstance(node, ast.Starred) for n in _named(node)
            }
            if isinstance(loop.target, ast.Name) and any(each.arg == "phases" for each in call.keywords):
                several = _named(loop.target)
            phases |= several
            slices |= _named(loop.target) - several
    for node in ast.walk(top):
        match node:
            case ast.For(target=target, iter=value) if _named(value) & phases:
                slices |= _named(target) if not isinstance(value, ast.Subscript) else set()
            case ast.Assign(targets=targets, value=value) if _named(value) & phases:
                slices |= {name for target in targets for name in _named(target)}
    return slices - phases, phases


def _named(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _gives_batches(node: ast.AST, functions: Functions) -> bool:
    """Whether there is a call of `session.batches` in it, or of a generator of the program that has one."""
    for call in (node for node in ast.walk(node) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name == "batches" and isinstance(call.func, ast.Attribute):
            return True
        for function, _ in functions.get(name, []):
            inner = list(ast.walk(function))
            if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inner):
                return any(isinstance(n, ast.Attribute) and n.attr == "batches" for n in inner)
    return False


def _is_prepared(loop: ast.For | ast.AsyncFor, names: set[str], top: ast.AST) -> bool:
    """Whether it goes over a loader that Accelerate or Fabric has prepared, and its turns end in `backward(loss)`."""
    ends = any(
        isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "backward" and node.args
        for statement in loop.body
        for node in ast.walk(statement)
    )
    return ends and any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "attr", "") in PREPARING
        and any(getattr(t, "id", "") in names for target in node.targets for t in ast.walk(target))
        for node in ast.walk(top)
    )


def _has_backward(body: Sequence[ast.stmt]) -> bool:
    """Whether there is a `loss.backward()` in a loop's body itself, and not in a loop inside of it."""
    nodes = [node for node in body if not isinstance(node, Loop)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "backward":
            return True
        nodes += [each for each in ast.iter_child_nodes(node) if not isinstance(each, Loop)]  # type: ignore[misc]
    return False
