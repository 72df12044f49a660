"""What every part of the job file is made of."""

from pydantic import BaseModel, ConfigDict

MAX_WORKERS = 4096


class Part(BaseModel):
    """A frozen part of the job file that admits no key it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
