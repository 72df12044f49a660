"""Errors of data sets in files that cannot be read: they name the place."""

from ringleader.errors import RingleaderError


class FileUnreadable(RingleaderError):
    """A file of a data set is not there, cannot be read, or is not what it should be."""

    code = "entrypoint_raised"

    def __init__(self, uri: str, why: str, hint: str = "Write the file again, or leave it out.") -> None:
        super().__init__(f"{uri} cannot be read: {why}.", hint=hint)


class BlockUnreadable(RingleaderError):
    """A block of a source, or a whole file, is damaged, missing, or not what it was.

    Args:
        place: in words, as `Source.name` gives it: "file.parquet, row group 3", or a path.
        why: what is wrong, without a full stop.
    """

    code = "entrypoint_raised"

    def __init__(self, place: str, why: str) -> None:
        super().__init__(
            f"{place} cannot be read: {why}.",
            hint="Write the file again, or leave it out; do not change files that a job reads.",
        )
        self.place = place


class RowUnreadable(RingleaderError):
    """A value of a row is missing or cannot be decoded."""

    code = "entrypoint_raised"

    def __init__(self, column: str, row: int, why: str) -> None:
        super().__init__(
            f"column {column!r} of row {row} cannot be read: {why}.",
            hint="Repair or drop the row, or leave the column out with columns=[…].",
        )
