"""The cookies of a request: read as they stand, and none but our own handed on.

The standard library undoes the quoting of a value in time that grows with the square of its length. Anybody may send a
header of 64 KiB, and the framework reads all cookies of a request for each route.
"""

from collections.abc import Collection, Iterator

from starlette.datastructures import Headers
from starlette.types import Scope

QUOTING = frozenset('"\\')


def cookie(headers: Headers, name: str) -> str | None:
    """The value of the first cookie of that name; None without one."""
    return next((value for found, value in _cookies(headers) if found == name), None)


def keep_own(scope: Scope, names: Collection[str]) -> None:
    """Leave the cookies of these names in the request, which have no quotes, and remove all others."""
    own = [f"{name}={value}" for name, value in _cookies(Headers(scope=scope)) if name in names]
    others = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    kept = "; ".join(one for one in own if QUOTING.isdisjoint(one))
    scope["headers"] = [*others, (b"cookie", kept.encode("latin-1"))] if kept else others


def _cookies(headers: Headers) -> Iterator[tuple[str, str]]:
    for part in headers.get("cookie", "").split(";"):
        name, sign, value = part.partition("=")
        if sign:
            yield name.strip(), value.strip()
