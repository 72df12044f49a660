"""Text as it may leave a process: without the lone surrogates that Python strings may hold and UTF-8 cannot carry, and
without what a terminal would not show."""

import json
import re
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")
_PLACE = re.compile(r"The training function (raised .+):")


def utf8(text: str) -> str:
    """The same text, each lone surrogate spelt out: U+DCFF becomes the six characters \\udcff."""
    return _LONE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_utf8(text: str) -> bool:
    return _LONE.search(text) is None


def gist(message: str) -> str:
    """A message in one line: of a traceback the exception, and where it was raised if the first line says so."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    if not any(line.startswith("Traceback") for line in lines):
        return lines[0]
    place = _PLACE.fullmatch(lines[0])
    return f"{lines[-1]} ({place[1]})" if place else lines[-1]


def last_shown(line: str) -> str:
    """The text that a terminal shows of the line in the end: a progress bar writes over its own, from a \\r on."""
    # Nothing is written over at the end: a line of text may end with CR LF.
    return line.rstrip("\r").rsplit("\r", 1)[-1]


def utf8_json(value: Any, *, allow_nan: bool = False) -> str:
    """`value` as JSON, its keys and strings as `utf8` gives them.

    Raises:
        ValueError: a number is not finite, and `allow_nan` does not let it be written as JavaScript does.
        TypeError: something is no JSON.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)
    return _LONE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)


def is_plain(value: Any, deep: int, many: int) -> bool:
    """Whether every text in `value`, key or part, can leave a process, nothing is nested deeper than `deep`, and there
    are no more than `many` keys and parts."""
    left, found = [(value, 0)], 0
    while left:
        part, level = left.pop()
        if isinstance(part, str):
            if not is_utf8(part):
                return False
        elif isinstance(part, (dict, list)):
            found += len(part) * (1 + isinstance(part, dict))
            if level >= deep or found > many:
                return False
            left += [(one, level + 1) for one in part]
            left += [(one, level + 1) for one in part.values()] if isinstance(part, dict) else []
    return True


def plain(value: Any, deep: int) -> Any:
    """The value as it can leave a process: texts as `utf8` gives them, and "…" for values that are nested deeper."""
    if isinstance(value, str):
        return utf8(value)
    if not isinstance(value, (dict, list)):
        return value
    if not deep:
        return "…"
    if isinstance(value, list):
        return [plain(part, deep - 1) for part in value]
    return {utf8(key): plain(part, deep - 1) for key, part in value.items()}
