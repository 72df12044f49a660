"""Duplicate keys in a JSON body: a parser keeps the last of them without a word."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ringleader.errors import FINDINGS_TOLD, and_more
from ringleader.spec.findings import PartLocation


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
    again = _again(body) if body else iter(())
    told = [_finding(place, value) for place, value in islice(again, FINDINGS_TOLD)]
    # The others are counted, and not spelt out.
    return DuplicateKeys(told, and_more(sum(1 for _ in again)))


def _finding(place: PartLocation, value: Any) -> dict[str, Any]:
    # A nested value is not quoted back: it may be the whole body.
    told = None if isinstance(value, (_Object, list)) else value
    message = f"the key {place.key!r} appears twice"
    return {"pointer": place.pointer, "value": told, "allowed": "each key once", "message": message}


def _again(body: bytes) -> Iterator[tuple[PartLocation, Any]]:
    left: list[tuple[PartLocation, Any]] = [(PartLocation(), json.loads(body, object_pairs_hook=_Object))]
    # A stack instead of recursion: how deep a body nests is its sender's choice.
    while left:
        place, part = left.pop()
        pairs = part if isinstance(part, _Object) else enumerate(part) if isinstance(part, list) else ()
        seen = set()
        for key, value in pairs:
            if key in seen:
                yield PartLocation(key, place), value
            seen.add(key)
            if isinstance(value, (_Object, list)):
                left.append((PartLocation(key, place), value))
