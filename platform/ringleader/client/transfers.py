"""Moving bytes: an answer into a file, whole or not at all, and a package to the control plane."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from ringleader.client.http import Api, pauses
from ringleader.errors import ApiProblem, RingleaderError
from ringleader.wire import package

UPLOAD_TRIES = 10


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


def upload(api: Api, data: bytes) -> str:
    """The digest of a package, once all its bytes are there. Another process of the same user may be sending them.

    Raises:
        ApiProblem: the API refused.
        ApiUnreachable: the connection broke.
    """
    name, tries, offset_before = package.digest(data), UPLOAD_TRIES, -1
    give_up_at = 0.0
    for pause_s in pauses():
        if (offset := _missing_from(api, name)) is None:
            break
        if offset != offset_before:  # it goes on, whoever sends it
            offset_before, give_up_at = offset, time.monotonic() + api.patience_s
        try:
            _send(api, name, data, offset)
            break
        except ApiProblem as problem:
            # An upload by another process is waited for as long as it grows, and takes no try.
            tries -= problem.code == "bad_upload"
            late = problem.code == "upload_under_way" and time.monotonic() > give_up_at
            if problem.code not in ("bad_upload", "upload_under_way") or not tries or late:
                raise
        time.sleep(pause_s)
    return name


def _missing_from(api: Api, name: str) -> int | None:
    """The offset behind the bytes that are there; None where all of them are."""
    try:
        api.request("HEAD", f"/packages/{name}")
    except ApiProblem as problem:
        if problem.status != 404:
            raise
        return int(problem.headers.get("Upload-Offset", 0))
    return None


def _send(api: Api, name: str, data: bytes, offset: int) -> None:
    headers = {"Content-Type": "application/zip", "Upload-Offset": str(offset)}
    api.request("PUT", f"/packages/{name}", content=data[offset:], headers=headers)
