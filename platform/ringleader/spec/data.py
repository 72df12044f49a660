"""The `data:` part of the job file: where workers read from, and the order of shuffled rows."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ringleader.spec.part import Impossible, SpecPart

WINDOW_BLOCKS = 16
MOST_RANGES = 1000
Step = Annotated[int, Field(strict=True, ge=1)]
SetName = Annotated[str, Field(min_length=1, max_length=100)]
SetUri = Annotated[str, Field(min_length=1, max_length=2000)]


def with_its_order(stored: dict[str, Any]) -> dict[str, Any]:
    """A stored job file, with the order that it had."""
    data = stored.get("data") or {}
    # One that names none comes from a version that shuffled row by row.
    return stored if "order" in data else {**stored, "data": {**data, "order": "shuffled"}}


class Data(SpecPart):
    """The place that workers read files of data sets from: the source, or a copy of the whole on their node; and the
    order in which `session.batches` shuffles rows, and the steps of it that are left out; and files by the names that
    the program knows them by."""

    distribution: Literal["sharded", "replicated"] = "sharded"
    order: Literal["auto", "shuffled", "row", "block"] = "auto"
    window_blocks: Annotated[int, Field(strict=True, ge=1, le=1 << 20)] | None = None
    sets: dict[SetName, SetUri] = {}
    skip: Annotated[tuple[tuple[Step, Step], ...], Field(max_length=MOST_RANGES)] = ()

    @property
    def window(self) -> int:
        """Blocks of a window within which rows are shuffled."""
        return self.window_blocks or WINDOW_BLOCKS

    @model_validator(mode="after")
    def _windows_are_used(self) -> Self:
        if self.window_blocks is not None and self.order not in ("auto", "block"):
            raise Impossible(
                "window_blocks",
                self.window_blocks,
                f"window_blocks is not used with order: {self.order}; allowed: leave it out, or order: block or auto",
            )
        return self

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Self:
        for first, last in self.skip:
            if last < first:
                raise Impossible(
                    "skip",
                    [first, last],
                    f"skip has the range [{first}, {last}], which ends before it begins; allowed: [first, last], both "
                    "left out",
                )
        return self
