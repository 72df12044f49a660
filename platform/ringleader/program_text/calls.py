"""The calls and functions of a program's text: what is called, what it is given, and what it gives."""

import ast
import builtins
from collections.abc import Collection, Iterator, Sequence

import torch

from ringleader.program_text.program_scope import (
    OF_FUNCTION,
    Definition,
    Function,
    Key,
    ProgramScope,
    name_of,
    parameters_of,
)

ENDS = frozenset(["step", "backward"])
HARMLESS = frozenset(
    [
        *("print", "pprint", "echo", "log", "debug", "info", "warning", "error", "critical", "exception"),
        *("write", "writelines", "write_text", "writerow", "dump", "save", "savefig", "mkdir", "makedirs"),
        *(
            "flush",
            "close",
            "add_scalar",
            "add_scalars",
            "add_text",
            "log_metric",
            "log_metrics",
            "log_param",
        ),
        *(
            "log_params",
            "log_artifact",
            "log_image",
            "log_histogram",
            "log_text",
            "init",
            "finish",
            "start_run",
        ),
        *("end_run", "set_experiment", "set_description", "set_postfix", "set_postfix_str"),
    ]
)
"""Calls that show or store what they are given; as a statement, they do not affect training."""
LOADS = "load_state_dict"
TEXTS = frozenset(["__str__", "__repr__", "__format__"])
"""Methods by which an object is made into text, to be shown."""
ROW, CALLED = "__getitem__", "__call__"
GIVING = frozenset(["forward", ROW, "__getitems__"])
"""Methods that others call, for a turn, by no name."""
OF_TURNS = GIVING | {"__call__", "__enter__", "__next__", "training_step", "compute_loss"}
"""Methods whose results go into losses, by no name either."""
REFILLS = frozenset(["zero_", "fill_", "copy_"])
"""Methods that give a tensor other contents, whatever it had."""
_MAKES = frozenset(["zeros", "ones", "tensor", "full", "empty", "zeros_like", "ones_like"])
"""Functions of torch that make a new tensor."""
_OF_MODULES = frozenset(dir(torch.nn.Module)) - {"forward", "__call__"}
"""The methods that every module has, and that run no forward: `self.model.train()`."""


def part_of_result(function: str, number: int) -> Key:
    """One of the values that functions of that name return at once."""
    return "()", f"{function}[{number}]"


def are_pairs(parts: Sequence[ast.expr], values: Sequence[ast.expr]) -> bool:
    return len(parts) == len(values) and not starred([*parts, *values])


def all_return_parts(known: Sequence[tuple[Function, ProgramScope]], number: int) -> bool:
    """Whether these functions, of which there is one at least, all return so many values, in a tuple each time."""
    return bool(known) and all(_returns_parts(function, number) for function, _ in known)


def _returns_parts(function: Function, number: int) -> bool:
    """Whether it always returns so many values, as a tuple each time."""
    nodes: list[ast.AST] = [*function.body]
    found: list[ast.expr | None] = []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return False
        found += [node.value] if isinstance(node, ast.Return) else []
        nodes += [] if isinstance(node, Definition | ast.Lambda) else ast.iter_child_nodes(node)
    tuples = [value for value in found if isinstance(value, ast.Tuple)]
    alike = all(len(each.elts) == number and not starred(each.elts) for each in tuples)
    return bool(found) and len(tuples) == len(found) and alike


def starred(parts: Sequence[ast.expr]) -> bool:
    return any(isinstance(part, ast.Starred) for part in parts)


def sets_own(call: ast.Call) -> bool:
    """Whether it is `setattr(self, …)`."""
    return name_of(call.func) == "setattr" and bool(call.args) and name_of(call.args[0]) == "self"


def arguments(
    call: ast.Call, function: Function, scope: ProgramScope, *, every: set[Key]
) -> Iterator[tuple[ast.expr, set[Key]]]:
    """The arguments of a call of a function of the program, each with the parameters that may get it.

    Args:
        every: those of an argument of which it cannot be seen which parameter gets it.
    """
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(call.func, ast.Attribute) and names[:1] == ["self"]:
        names = names[1:]
    every = {(scope.name, name) for name in parameters_of(function) - {"self"}} or every
    for number, argument in enumerate(call.args):
        # Behind `*values`, or one argument too many, it cannot be seen which parameter gets it.
        plain = number < len(names) and not starred(call.args[: number + 1])
        yield argument, {(scope.name, names[number])} if plain else every
    by_name = {name.partition(OF_FUNCTION)[0]: name for name in parameters_of(function)}
    for keyword in call.keywords:
        parameter = (scope.name, by_name.get(keyword.arg or "", keyword.arg or ""))
        yield keyword.value, {parameter} if keyword.arg else every


def own_buffers(tree: ast.AST) -> Iterator[str]:
    """The names of buffers that are registered with new tensors, which are views of no others."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="register_buffer"),
                args=[ast.Constant(str(name)), ast.Call(func=ast.Attribute(ast.Name("torch"), made)), *_],
            ) if made in _MAKES:
                yield name


def refilled(value: ast.expr, buffers: Collection[str]) -> Key | None:
    """The buffer of its own that a module gives other contents: `self.total.zero_()`. Nothing is read of it."""
    match value:
        case ast.Call(func=ast.Attribute(ast.Attribute(ast.Name("self"), name), method)):
            return ("", f".{name}") if method in REFILLS and name in buffers else None
    return None


def ends_a_turn(node: ast.AST) -> bool:
    """Whether it calls `session.step`, or a `backward`."""
    called = node.func if isinstance(node, ast.Call) else None
    if not isinstance(called, ast.Attribute) or called.attr not in ENDS:
        return False
    return called.attr != "step" or name_of(called.value) == "session"


def calls_an_object(called: ast.expr, imported: Collection[str]) -> bool:
    """Whether what is called may be an object of the program (`net(x)`, `self.teacher(x)`): no method of the session's,
    none that every tensor or module has, and nothing that is imported."""
    if isinstance(called, ast.Name):
        return called.id not in imported and not hasattr(builtins, called.id)
    if not isinstance(called, ast.Attribute):
        return True
    if called.attr in _OF_MODULES:
        return False
    base: ast.expr = called
    while isinstance(base, ast.Attribute):
        base = base.value
    if name_of(called.value) == "session" or (isinstance(base, ast.Name) and base.id in imported):
        return False
    # `schedule.step()` calls a method of torch's; a program's own `state.step` is a number.
    return name_of(called.value) == "self" or not (
        called.attr == "step" or hasattr(torch.Tensor, called.attr)
    )


def may_be_read_by_number(kind: ast.ClassDef) -> bool:
    """Whether objects of the class may be data sets: these have a length, their own or that of a base."""
    methods = {each.name for each in kind.body if isinstance(each, Function)}
    return bool(kind.bases) or not methods.isdisjoint(("__len__", "__getitems__"))


def is_method(node: Function) -> bool:
    """Whether only attributes of an object call it."""
    return [argument.arg for argument in node.args.args[:1]] == ["self"]


def is_property(node: Function) -> bool:
    """Whether its result goes to those who read an attribute of its name."""
    return [name_of(each) in ("property", "cached_property") for each in node.decorator_list] == [True]


def trains(node: Function) -> bool:
    """Whether it looks like a training function, whose result goes only to callers by its name."""
    return [argument.arg for argument in node.args.args] == ["session"]
