"""Plain values from a member under another account to its actor, each read as the one type that it may be.

A frame is the name of its kind, a line end, and JSON. The actor has Ray's token and the owner's account: of what comes
here nothing is unpickled, and nothing is made but the dataclasses below, numbers and texts.
"""

import json
from dataclasses import asdict
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ringleader.runtime.messages import Attendance, Heartbeat, ParkMessage, RunEnded

MOST_BYTES: Final = 128 << 20
"""The largest frame: a heartbeat brings at most 16 MB of printed lines."""
_PLAIN = ConfigDict(val_json_bytes="hex")

_KINDS: dict[str, TypeAdapter[Any]] = {
    "ready": TypeAdapter(tuple[()]),
    "parked": TypeAdapter(tuple[ParkMessage]),
    "seated": TypeAdapter(tuple[int]),
    "in_sync": TypeAdapter(tuple[int]),
    "beat": TypeAdapter(tuple[int, Heartbeat], config=_PLAIN),
    "secrets": TypeAdapter(tuple[int]),
    "index": TypeAdapter(tuple[int, str]),
    "index_made": TypeAdapter(tuple[str, bytes | None], config=_PLAIN),
    "attendance": TypeAdapter(tuple[int, Attendance]),
    "ended": TypeAdapter(tuple[RunEnded]),
}
"""The types of a frame's values, by kind. The first number of `beat`, `secrets`, `index` and `attendance` names the
question."""


class NotPlain(Exception):
    """A frame that no member of ours has sent."""


def frame(kind: str, *values: Any) -> bytes:
    """The frame of a kind with its values."""
    body = json.dumps(values, ensure_ascii=False, default=_plain)
    # A lone surrogate, which a text may hold, arrives as a question mark: it must not cost the frame.
    return kind.encode() + b"\n" + body.encode("utf-8", "replace")


def read(told: bytes) -> tuple[str, tuple[Any, ...]]:
    """The kind of a frame, and its values. Raises NotPlain."""
    name, _, body = told.partition(b"\n")
    adapter = _KINDS.get(name.decode("ascii", "replace"))
    if adapter is None:
        raise NotPlain(f"a frame of no kind: {name[:40]!r}")
    try:
        return name.decode(), adapter.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise NotPlain(f"{name.decode()} is none: {first['loc']}: {first['msg']}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.model_dump() if isinstance(value, BaseModel) else asdict(value)
