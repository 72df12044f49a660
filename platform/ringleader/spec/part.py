"""The base model of every part of the job file, and the error for keys that exclude each other."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_WORKERS = 4096


class SpecPart(BaseModel):
    """A frozen part of the job file that admits no key it does not know."""

    # YAML has .inf and .nan, and JSON, in which a job file is sent and stored, has neither.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Impossible(ValueError):
    """Keys that do not go together.

    Attributes:
        keys: the path from the part that checks to the key to change, in parts or with dots between them.
        value: the value of that key.
    """

    def __init__(self, keys: str | Sequence[str], value: Any, message: str) -> None:
        super().__init__(message)
        self.keys = keys.split(".") if isinstance(keys, str) else list(keys)
        self.value = value
