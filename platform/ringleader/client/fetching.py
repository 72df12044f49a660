"""Fetching an answer into a file, whole or not at all."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringleader.client.http import Api


def fetch(api: Api, path: str, target: Path, params: Mapping[str, Any] | None = None) -> Path:
    """Write what the API answers to `target`, which appears whole or not at all, in place of one that is there.

    Args:
        path: below the API's base.
        params: those of the query; None values are left out.

    Raises:
        ApiProblem: the API refused.
        ApiUnreachable: the connection broke.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target: a rename is one move only within a file system.
    descriptor, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in api.body(path, params):
                file.write(chunk)
        Path(partial).chmod(0o644)  # mkstemp made it 0600
        Path(partial).replace(target)
    finally:
        Path(partial).unlink(missing_ok=True)
    return target
