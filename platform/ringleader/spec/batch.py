"""The keys of the job file's `batch:`: the rows of a step, their schedule, and the parts that they are cut into."""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from ringleader.spec.part import MAX_WORKERS, Impossible, SpecPart

Rows = Annotated[int, Field(strict=True, ge=1, le=1 << 30)]
BatchChange = tuple[Annotated[int, Field(strict=True, ge=1)], Rows]
"""(at which committed step, rows of a global batch from that step on)."""


class Batch(SpecPart):
    """The global batch, its sizes at later steps, and the fixed number of logical shards it is cut into."""

    global_size: Rows = 64
    schedule: tuple[BatchChange, ...] = ()
    logical_shards: Annotated[int, Field(strict=True, ge=1, le=MAX_WORKERS)] | None = None

    @field_validator("schedule", mode="before")
    @classmethod
    def _in_pairs(cls, schedule: object) -> object:
        # Here and not by the type: that would say "a valid tuple", which is no word of a job file.
        pairs = isinstance(schedule, list | tuple) and all(
            isinstance(change, list | tuple) and len(change) == 2 for change in schedule
        )
        if not pairs:
            raise Impossible(
                (),
                schedule,
                "batch.schedule is no list of pairs; allowed: the step and the rows of a batch from it on, such as "
                "[[1000, 256], [5000, 512]]",
            )
        return schedule

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for number, ((before, _), (step, _)) in enumerate(pairwise(self.schedule), start=1):
            if step <= before:
                raise Impossible(
                    f"schedule.{number}",
                    list(self.schedule[number]),
                    f"batch.schedule has step {step} after step {before}; allowed: steps in ascending order, each "
                    f"once",
                )
        return self

    def size_at(self, step: int) -> int:
        """The rows of the global batch behind so many committed steps."""
        reached = [rows for at, rows in self.schedule if at <= step]
        return reached[-1] if reached else self.global_size

    def changes_behind(self, step: int) -> tuple[BatchChange, ...]:
        """The changes of the size to come behind so many committed steps, with steps counted from there."""
        return tuple((at - step, rows) for at, rows in self.schedule if at > step)
