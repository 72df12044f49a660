"""What hooks of registered models leave in the program's variables.

A hook puts features of the newest slice into a dict, from which the loss of the same turn takes them. They differ by
worker, and rightly. What a hook makes of its own earlier value, as a running mean, is none of these.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from ringleader.program_text.carrying_hooks import carried_by, moved_by


def outputs_of_hooks(models: Iterable[nn.Module]) -> Iterator[Any]:
    """The tensors that hooks reach by their variables, and the dicts and lists that have some; not those which hooks
    move on from what they were, unless another hook sets them."""
    hooks = [
        hook
        for model in models
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    found = [(id(value), value, moved) for hook in hooks for value, moved in _reached_by(hook)]
    left = {number for number, _, moved in found if moved is False}
    for number, value, moved in found:
        if (not moved or number in left) and _holds_tensors(value):
            yield value


def carried_of_hooks(models: Iterable[nn.Module]) -> Iterator[tuple[Any, str, int, Any]]:
    """What hooks of modules, parameters and gradients carry from call to call: the hook, the variable's name, a line
    that changes it, and its value."""
    for hook in {id(hook): hook for model in models for hook in _hooks_of(model)}.values():
        for name, line in carried_by(hook):
            function = getattr(hook, "__func__", hook)
            around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            with suppress(ValueError, AttributeError, KeyError):  # nothing is assigned yet
                if name.startswith("."):
                    value = getattr(hook.__self__, name[1:])
                else:
                    value = around[name].cell_contents if name in around else function.__globals__[name]
                yield hook, name.removeprefix("."), line, value


def _hooks_of(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            yield from getattr(module, kind).values()
    for parameter in model.parameters():
        yield from (parameter._backward_hooks or {}).values()
        yield from (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()


def _reached_by(hook: Callable[..., Any]) -> Iterator[tuple[Any, bool | None]]:
    """The variables around a function, the globals that it names, and the attributes of a method's object, each with
    whether the hook moves it on from what it was; None where it does not change it."""
    function, moved = getattr(hook, "__func__", hook), moved_by(hook)
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(getattr(code, "co_freevars", ()), cells, strict=True):
        with suppress(ValueError):  # nothing is assigned yet
            yield cell.cell_contents, moved.get(name)
    known = getattr(function, "__globals__", {})
    names = getattr(code, "co_names", ())
    yield from ((known[name], moved.get(name)) for name in names if name in known)
    owner = getattr(hook, "__self__", None if hasattr(hook, "__code__") else hook)
    if owner is not None and not isinstance(owner, nn.Module):
        attributes = dict(getattr(owner, "__dict__", {}))
        yield from ((value, moved.get(f".{name}")) for name, value in attributes.items())


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict | list | deque):
        return any(
            isinstance(part, Tensor) for part in (list(value.values()) if isinstance(value, dict) else value)
        )
    return isinstance(value, Tensor)
