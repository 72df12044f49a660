"""The files of saved artifacts, below the job's folder: each is written once, by whichever attempt is first."""

import shutil
from pathlib import Path

from ringleader.errors import RingleaderError
from ringleader.runtime.worker.account_files import SPARE_BYTES
from ringleader.wire.artifacts import FILE, MOST_BYTES, MOST_FILES, MOST_OF_JOB, NAME, SUFFIXES, SavedArtifact


class ArtifactRefused(RingleaderError):
    """An artifact that cannot be written."""


class ArtifactFiles:
    """The files in one folder. A worker may be under an account of its own: what it says is checked."""

    def __init__(self, folder: Path, *, most_files: int = MOST_FILES, most_bytes: int = MOST_OF_JOB) -> None:
        self._folder = folder
        self._most_files = most_files
        self._most_bytes = most_bytes
        self._held: dict[str, int] | None = None

    def files(self) -> dict[str, int]:
        """The sizes of the files that are there, by name."""
        if self._held is None:
            there = self._folder.iterdir() if self._folder.is_dir() else ()
            # Not what a process that was killed has begun to write.
            self._held = {each.name: each.lstat().st_size for each in there if not each.name.startswith(".")}
        return self._held

    def write(self, artifact: SavedArtifact) -> None:
        """Write the file, unless it is there.

        Raises:
            ArtifactRefused: it is none, there is no room for it, or the job has saved too much.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            held = self.files()
            if artifact.file in held:
                return
            self._check(artifact, held)
            # Renamed when it is complete: a reader sees all of it or nothing.
            partial = self._folder / f".{artifact.file}.partial"
            partial.write_bytes(artifact.content)
            partial.replace(self._folder / artifact.file)
        except OSError as error:
            raise ArtifactRefused(f"{self._folder}: {error.strerror}.") from error
        held[artifact.file] = len(artifact.content)

    def _check(self, artifact: SavedArtifact, held: dict[str, int]) -> None:
        size = len(artifact.content)
        named = NAME.fullmatch(artifact.name) and FILE.fullmatch(artifact.file)
        known = named and artifact.suffix in SUFFIXES.get(artifact.kind, ())
        if not known or size > MOST_BYTES:
            raise ArtifactRefused("a worker sent what is no artifact.")
        if len(held) >= self._most_files or sum(held.values()) + size > self._most_bytes:
            raise ArtifactRefused(
                f"a job keeps at most {self._most_files} artifacts, of {self._most_bytes >> 20} MiB together.",
                hint="Save at fewer steps.",
            )
        if shutil.disk_usage(self._folder).free < size + SPARE_BYTES:
            raise ArtifactRefused(
                f"{self._folder} has no room for more artifacts.",
                hint="Free space on the disk of RINGLEADER_HOME.",
            )
