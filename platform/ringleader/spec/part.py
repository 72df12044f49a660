"""What every part of the job file is made of."""

from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_WORKERS = 4096


class SpecPart(BaseModel):
    """A frozen part of the job file that admits no key it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Impossible(ValueError):
    """Keys that do not go together.

    Attributes:
        keys: the way from the part that checks to the key to change.
        value: of that key.
    """

    def __init__(self, keys: str, value: Any, message: str) -> None:
        super().__init__(message)
        self.keys = keys.split(".")
        self.value = value
