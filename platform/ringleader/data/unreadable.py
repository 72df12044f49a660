"""Errors of data sets in files that cannot be read: they name the place."""

from typing import Self

from ringleader.data.uris import hint_for, said
from ringleader.errors import RingleaderError


class FileUnreadable(RingleaderError):
    """A file of a data set is not there, cannot be read, or is not what it should be."""

    code = "entrypoint_raised"

    def __init__(self, uri: str, why: str, hint: str = "Write the file again, or leave it out.") -> None:
        super().__init__(f"{uri} cannot be read: {why}.", hint=hint)
        self.why = why


class BlockUnreadable(RingleaderError):
    """A block of a source, or a whole file, is damaged, missing, or not what it was.

    Args:
        place: in words, as `Source.name` gives it: "file.parquet, row group 3", or a path.
        why: what is wrong, without a full stop.
    """

    code = "entrypoint_raised"
    cure = "Write the file again, or leave it out; do not change files that a job reads."

    def __init__(self, place: str, why: str, hint: str = cure) -> None:
        super().__init__(f"{place} cannot be read: {why}.", hint=hint)
        self.place = place

    @classmethod
    def of(cls, place: str, error: Exception) -> Self:
        """The error for what a file system or a decoder raised: its hint tells a server that refuses or fails from a
        damaged file."""
        if isinstance(error, FileNotFoundError):
            return cls(place, "its file is no longer there")
        why = error.why if isinstance(error, FileUnreadable) else said(error)
        return cls(place, why, hint_for(error, place, cls.cure))


class FilesChanged(RingleaderError):
    """The files of a data set are not those with which the loop began."""

    code = "entrypoint_raised"

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"the files of the {dataset} that this loop reads have changed since the loop began: it would read other "
            f"rows than its committed steps.",
            hint="Put the files back that it began with. To go on with other ones submit a job with init_from.",
        )


class RowUnreadable(RingleaderError):
    """A value of a row is missing or cannot be decoded."""

    code = "entrypoint_raised"

    def __init__(self, column: str, row: int, why: str) -> None:
        super().__init__(
            f"column {column!r} of row {row} cannot be read: {why}.",
            hint="Repair or drop the row, or leave the column out with columns=[…].",
        )
