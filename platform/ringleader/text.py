"""Text that UTF-8 cannot carry: Python strings may hold lone surrogates, and nothing that leaves a process may."""

import json
import re
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")


def utf8(text: str) -> str:
    """The same text, each lone surrogate spelt out: U+DCFF becomes the six characters \\udcff."""
    return _LONE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_utf8(text: str) -> bool:
    return _LONE.search(text) is None


def utf8_json(value: Any, *, allow_nan: bool = False) -> str:
    """`value` as JSON, its keys and strings as `utf8` gives them.

    Raises:
        ValueError: a number is not finite, and `allow_nan` does not let it be written as JavaScript does.
        TypeError: something is no JSON.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)
    return _LONE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)
