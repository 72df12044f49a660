"""The variables outside of a function, and the attributes, that it sets or reads, by its compiled code.

A function has its code also where its file has no text, and it says what the function itself does.
"""

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

_STORES = frozenset(
    ["STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_DEREF", "DELETE_ATTR"]
)
_BY_TEXT = frozenset(["setattr", "delattr", "vars", "__dict__", "globals", "environ", "putenv"])
"""Names in functions that set something by a text: `setattr(task, "level", 2)`, `os.environ["LEVEL"] = "2"`."""


@lru_cache(maxsize=1024)
def stored_names(code: CodeType) -> dict[str, int]:
    """The names that a function sets, each with a line; not its own variables, and nothing of functions inside."""
    found = {}
    for each in dis.get_instructions(code):
        if each.opname in _STORES and not (
            each.opname.endswith("_DEREF") and each.argval not in code.co_freevars
        ):
            found[str(each.argval)] = _line(each)
        elif (
            each.opname == "LOAD_CONST"
            and isinstance(each.argval, str)
            and not _BY_TEXT.isdisjoint(code.co_names)
        ):
            found[each.argval] = _line(each)
    return found


def read_names(code: CodeType) -> Iterator[str]:
    """The names that a function may read, but for its own variables, and its texts: one may be a name."""
    yield from (*code.co_names, *code.co_freevars)
    yield from (each for each in code.co_consts if isinstance(each, str))


def codes_in(function: FunctionType) -> Iterator[CodeType]:
    """The code of a function, and of the functions inside."""
    left = [function.__code__]
    while left:
        code = left.pop()
        yield code
        left += [each for each in code.co_consts if isinstance(each, CodeType)]


def _line(instruction: dis.Instruction) -> int:
    positions = instruction.positions
    return (positions.lineno or 0) if positions is not None else 0
