"""The errors of a job file, in words: one {pointer, value, allowed, message} a finding."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self, get_args, get_origin

from pydantic import BaseModel, ValidationError

from ringleader.errors import FINDINGS_TOLD
from ringleader.spec.part import Impossible
from ringleader.spec.sync_keys import Architecture
from ringleader.text import is_utf8, utf8

NO_PART = frozenset({"model_type", "model_attributes_type", "dict_type"})
"""Pydantic's error types for something else where a mapping belongs."""
NO_JSON = "invalid-json-value"
"""Pydantic's error type for a value that JSON has not, as YAML's dates."""
KEY = "[key]"
"""Pydantic's last part of a location whose key is wrong itself."""


@dataclass(frozen=True, slots=True)
class PartLocation:
    """A part's place, below another one's. It is spelt out only when it is reported: a body may have a hundred thousand
    parts below keys of half a megabyte, whose pointers together would fill the memory."""

    key: str | int = ""
    outer: Self | None = None

    @property
    def pointer(self) -> str:
        keys: list[str] = []
        place = self
        while place.outer is not None:
            keys.append(str(place.key))
            place = place.outer
        return _pointer(reversed(keys))


def unsendable(source: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    """A finding for each part that JSON in UTF-8 cannot carry: text, key or value, and numbers; those beyond
    `FINDINGS_TOLD` are empty, to be counted only. No recursion: the sender chooses the depth."""
    for number, (place, part) in enumerate(_odd_parts(source)):
        yield {} if number >= FINDINGS_TOLD else _odd_part(place, part)


def _odd_part(place: PartLocation, part: str | float) -> dict[str, Any]:
    if isinstance(part, str):
        allowed = "text that can be encoded as UTF-8"
        message = f"the text has an unpaired surrogate (got {part!r})"
        return {"pointer": place.pointer, "value": utf8(part), "allowed": allowed, "message": message}
    message = f"Input should be a finite number (got {part!r})"
    return {"pointer": place.pointer, "value": part, "allowed": "a finite number", "message": message}


def _odd_parts(source: dict[Any, Any]) -> Iterator[tuple[PartLocation, str | float]]:
    seen: set[int] = set()  # YAML may name a part twice, or inside itself
    left: list[tuple[PartLocation, Any]] = [(PartLocation(), source)]
    while left:
        place, part = left.pop()
        if not isinstance(part, (dict, list)):
            yield place, part
        elif id(part) not in seen:
            seen.add(id(part))
            items = part.items() if isinstance(part, dict) else enumerate(part)
            # What is right is done with here: there may be many of it.
            below = [
                (PartLocation(utf8(str(key)), place), one)
                for key, value in items
                for one in (key, value)
                if isinstance(one, (dict, list)) or _is_odd(one)
            ]
            left += reversed(below)


def _is_odd(part: Any) -> bool:
    return not is_utf8(part) if isinstance(part, str) else isinstance(part, float) and not isfinite(part)


def _pointer(keys: Iterable[str]) -> str:
    # RFC 6901: `~` first, else the one in `~1` would be escaped again.
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)


def findings(
    error: ValidationError,
    model: type[BaseModel],
    patterns: Mapping[str, tuple[str, str]],
    moved: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    """Pydantic's errors in words, the first `FINDINGS_TOLD` of them; the rest are empty, to be counted only.

    Args:
        model: the model of the whole job file.
        patterns: by pattern, the complaint about text that does not match, and the text that is allowed.
        moved: pointers to values that the job file gives elsewhere, and where.
    """
    told: list[dict[str, Any]] = []
    for number, found in enumerate(error.errors(include_url=False)):
        finding = _finding(found, model, patterns) if number < FINDINGS_TOLD else {}
        if finding:
            finding["pointer"] = moved.get(finding["pointer"], finding["pointer"])
        if not finding or finding not in told:
            yield finding
        told.append(finding)


def _finding(error: Any, model: type[BaseModel], patterns: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """One pydantic error as {pointer, value, allowed, message}."""
    parts = [str(p) for p in error["loc"] if p != KEY]
    value = error.get("input")
    message = error["msg"].removeprefix("Value error, ")
    refused = (error.get("ctx") or {}).get("error")
    if isinstance(refused, Impossible):
        parts += refused.keys
        value = refused.value
        return {
            "pointer": _pointer(parts),
            "value": value,
            "allowed": message.split("allowed: ", 1)[-1],
            "message": message,
        }
    if error["type"] in NO_PART:
        allowed = _part_allowed(parts, model)
        message = f"expected {allowed} (got {'null' if value is None else repr(value)})"
        return {"pointer": _pointer(parts), "value": value, "allowed": allowed, "message": message}
    if (words := patterns.get((error.get("ctx") or {}).get("pattern", ""))) is not None:
        why, allowed = words
        message = f"{value!r} {why}; allowed: {allowed}"
        return {"pointer": _pointer(parts), "value": value, "allowed": allowed, "message": message}
    if error["type"] == NO_JSON:
        allowed = "text in quotes, a number, true, false, null, a list or a mapping"
        message = f"{value} is read as a {type(value).__name__}; allowed: {allowed}"
        return {"pointer": _pointer(parts), "value": str(value), "allowed": allowed, "message": message}
    if isinstance(value, (dict, list)) and error["type"] != "extra_forbidden":
        value = None
    allowed = message.split("allowed: ", 1)[1] if "allowed: " in message else _allowed(error, model)
    if error["type"] == "extra_forbidden":
        message = f"unknown key {parts[-1]!r} (value {value!r}); allowed: {allowed}"
    elif value is not None:
        message = f"{message} (got {value!r})"
    return {"pointer": _pointer(parts), "value": value, "allowed": allowed, "message": message}


def _part_allowed(place: Sequence[str], model: type[BaseModel]) -> str:
    """The values allowed where a part of the job file belongs, in words."""
    keys = sorted(_keys_at(tuple(place), model))
    mapping = f"a mapping with keys from {', '.join(keys)}" if keys else "a mapping"
    return f"one of {', '.join(get_args(Architecture))}, or {mapping}" if list(place) == ["sync"] else mapping


def _allowed(error: Any, model: type[BaseModel]) -> str:
    context = error.get("ctx") or {}
    if error["type"] == "extra_forbidden":
        return ", ".join(sorted(_keys_at(error["loc"][:-1], model)))
    if error["type"] == "missing":
        return "a value: this key is required"
    if "expected" in context:
        return str(context["expected"])
    return str(error["msg"].removeprefix("Value error, "))


def _keys_at(location: Sequence[int | str], model: type[BaseModel]) -> set[str]:
    """The keys of the part that `location` points to."""
    part: Any = model
    for key in location:
        if get_origin(part) is list:
            part = get_args(part)[0]
            continue
        field = part.model_fields.get(str(key)) if _is_part(part) else None
        if field is None:
            return set()
        part = field.annotation
    return set(part.model_fields) if _is_part(part) else set()


def _is_part(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
