"""Duplicate keys in a JSON body: a parser keeps the last of them without a word."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ringleader.errors import and_more, first_findings


class _Object(tuple[tuple[str, Any], ...]):
    """A JSON object as it was written: its (key, value) pairs."""


@dataclass(frozen=True, slots=True)
class DuplicateKeys:
    """A finding for each of the first duplicate keys; `rest` counts the others."""

    findings: list[dict[str, Any]]
    rest: str = ""


def named_twice(body: bytes) -> DuplicateKeys:
    """Find the keys that an object of the body names twice.

    Args:
        body: valid JSON, or nothing.
    """
    findings, left = first_findings(_again(body)) if body else ([], 0)
    return DuplicateKeys(findings, and_more(left))


def _again(body: bytes) -> Iterator[dict[str, Any]]:
    left: list[tuple[str, Any]] = [("", json.loads(body, object_pairs_hook=_Object))]
    # A stack instead of recursion: how deep a body nests is its sender's choice.
    while left:
        place, part = left.pop()
        pairs = part if isinstance(part, _Object) else enumerate(part) if isinstance(part, list) else ()
        seen = set()
        for key, value in pairs:
            inside = f"{place}/{str(key).replace('~', '~0').replace('/', '~1')}"
            if key in seen:
                # A nested value is not quoted back: it may be the whole body.
                told = None if isinstance(value, (_Object, list)) else value
                message = f"the key {key!r} appears twice"
                yield {"pointer": inside, "value": told, "allowed": "each key once", "message": message}
            seen.add(key)
            left.append((inside, value))
