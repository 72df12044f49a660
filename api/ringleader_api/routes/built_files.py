"""Files that the set-up has built into the package: the page, and the guide."""

from pathlib import Path


def file_below(folder: Path, path: str) -> Path | None:
    """The file at `path` below the folder; None where there is none, or it is outside."""
    try:
        file = (folder / path).resolve()
        return file if file.is_relative_to(folder.resolve()) and file.is_file() else None
    except (OSError, ValueError):  # no name of a file: too long, or with a NUL
        return None
