"""Counts from the settled ledger: steps that are missing, rows that were skipped or came twice."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of a ledger, compared with what it should hold.

    Attributes:
        steps: expected.
        rows: settled, repeated ones included.
        steps_lost: expected steps without a single row, and steps that nobody expected.
        rows_repeated: rows beyond the first within an epoch.
        rows_skipped: rows of the data set missing from an epoch.
    """

    steps: int
    rows: int
    steps_lost: int
    rows_repeated: int
    rows_skipped: int

    @property
    def clean(self) -> bool:
        return not (self.steps_lost or self.rows_repeated or self.rows_skipped)


def tally(entries: Iterable[tuple[int, int]], *, steps: int, rows: int, batch: int) -> Tally:
    """Count (step, row) entries of a run that passes over `rows` rows again and again, `batch` a step.

    Steps count from 1. Every epoch must hold each row of the data set exactly once.
    """
    per_epoch = -(-rows // batch)
    seen_steps: set[int] = set()
    seen_rows: Counter[tuple[int, int]] = Counter()
    for step, row in entries:
        seen_steps.add(step)
        seen_rows[(step - 1) // per_epoch, row] += 1
    epochs = range(-(-steps // per_epoch))
    # The last epoch may have been ended early; what it holds is then bounded by its steps.
    due = (
        {(epoch, row) for epoch in epochs for row in range(rows)}
        if steps % per_epoch == 0
        else set(seen_rows)
    )
    return Tally(
        steps=steps,
        rows=seen_rows.total(),
        steps_lost=len(set(range(1, steps + 1)) ^ seen_steps),
        rows_repeated=sum(count - 1 for count in seen_rows.values()) + len(set(seen_rows) - due),
        rows_skipped=len(due - set(seen_rows)),
    )


def read(path: Path) -> list[tuple[int, int]]:
    """The (step, row) entries of a ledger file."""
    import pyarrow.parquet as pq  # comes with the engine, which the demonstration needs anyway

    table = pq.read_table(path, columns=["step", "row"])
    return list(zip(table["step"].to_pylist(), table["row"].to_pylist(), strict=True))
