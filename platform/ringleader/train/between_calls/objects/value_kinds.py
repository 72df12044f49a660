"""Which function, class or layer a value is, beside what it holds: another one in its place computes something else.

Two losses without attributes, two functions of torch, two layers without weights have nothing else to be told apart by.
"""

from collections.abc import Collection, Iterator
from functools import partial
from inspect import unwrap
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType
from typing import Any

import numpy as np
from torch import nn

from ringleader.program_text.calls import HARMLESS
from ringleader.train.between_calls.objects.program_objects import is_users, of_program

KIND = " (which one)"
"""Behind the name of a variable, in that of the text for its kind."""
_BUILT_IN = (BuiltinFunctionType, MethodDescriptorType, np.ufunc)
_OF_TORCH = "torch.nn.modules."


def plain_name(name: str) -> str:
    """The name of the variable that a text is of."""
    return name.removesuffix(KIND)


def kind_of(value: Any, passing: Collection[str] = ()) -> str | None:
    """The name of a value; None for one that is told by what it holds, and for a function, whose text says it.

    Args:
        passing: attributes that each turn sets first.
    """
    return None if isinstance(value, FunctionType) else _kind(value, passing)


def layers_of(model: nn.Module, passing: Collection[str] = ()) -> Iterator[str]:
    """The layers of a model by class, with the functions that they have in place of their class's; those of torch with
    their settings: `dropout.p`, `norm.eps`."""
    for name, layer in model.named_modules():
        kind = type(layer)
        # Attributes of a program's own layers may be what its forwards leave, on each worker others.
        own = kind.__module__.startswith(_OF_TORCH)
        settings = [
            f"{key}={told}"
            for key, value in sorted(vars(layer).items())
            if not key.startswith("_") and key != "training" and key not in passing
            if (told := _setting(value) if own else _of_method(kind, key, value))
        ]
        yield " ".join([f"{name} {_of_class(kind)}", *settings])


def place_of_function(function: FunctionType) -> str:
    """The place of a function of the program; what it keeps is compared for itself."""
    return f"{function.__module__}.{function.__qualname__}:{function.__code__.co_firstlineno}"


def _kind(value: Any, passing: Collection[str]) -> str | None:
    match value:
        case type():
            return " ".join([_of_class(value), *_put_into(value)])
        case nn.Module():
            return "; ".join(layers_of(value, passing))
        case _ if is_users(value):
            kind: Any = type(value)
            own = vars(value) if hasattr(value, "__dict__") else {}
            methods = [
                f"{name}={told}"
                for name, each in sorted(own.items())
                if (told := _of_method(kind, name, each))
            ]
            return " ".join([_of_class(kind), *_put_into(kind), *methods])
    return _of_function(value)


def _setting(value: Any) -> str | None:
    return repr(value) if isinstance(value, int | float | str | tuple) else _of_function(value)


def _of_method(kind: Any, name: str, value: Any) -> str | None:
    """The place of the function that stands for a method of its class in an object; not of methods that show
    something, which may do so on one worker alone."""
    is_method = isinstance(getattr(kind, name, None), FunctionType) and name not in HARMLESS
    return _of_function(value) if is_method else None


def _put_into(kind: Any) -> Iterator[str]:
    """The functions that a class of the program's, or a base, has been given in place of those of its definition."""
    for each in kind.__mro__ if of_program(kind.__module__) else ():
        for name, value in sorted(vars(each).items()):
            if isinstance(value, FunctionType) and value.__qualname__ != f"{each.__qualname__}.{name}":
                yield from (f"{name}={told}" for told in [_of_method(each, name, value)] if told)


def _of_function(value: Any) -> str | None:
    """The place of a function; None for anything else."""
    match value:
        case FunctionType():
            inside = unwrap(value)  # below decorators such as torch.no_grad()
            return place_of_function(inside if isinstance(inside, FunctionType) else value)
        case MethodType() | staticmethod() | classmethod():
            return _of_function(value.__func__)
        case partial():
            return f"partial {_of_function(value.func) or type(value.func).__qualname__}"
        case _ if isinstance(value, _BUILT_IN):
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    return None


def _of_class(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
