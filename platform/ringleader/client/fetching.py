"""Fetching an answer into a file, whole or not at all."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from ringleader.client.http import Api
from ringleader.errors import RingleaderError


class NotWritten(RingleaderError):
    """A file cannot be written on this machine."""

    code = "not_written"


def fetch(api: Api, path: str, target: Path, params: Mapping[str, Any] | None = None) -> Path:
    """Write what the API answers to `target`, which appears whole or not at all, in place of one that is there.

    Args:
        path: below the API's base.
        params: those of the query; None values are left out.

    Raises:
        ApiProblem: the API refused.
        ApiUnreachable: the connection broke.
        NotWritten: the file, or its folder, cannot be written.
    """
    # Beside the target: a rename is one move only within a file system.
    partial = target.with_name(f".{token_hex(8)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            for chunk in api.body(path, params):
                file.write(chunk)
        partial.replace(target)
    except OSError as error:
        raise NotWritten(
            f"{target} cannot be written ({error.strerror or error}).",
            hint="Choose a place that you may write to.",
        ) from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return target
