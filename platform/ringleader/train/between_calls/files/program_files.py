"""Files that the program writes where they do not stay, or where every worker writes them, said once by path and line.

A worker's own working directory goes away with it. A file elsewhere that all workers write is written by several at
once, and again by whoever runs the lines again: which paths are the same on all, members find out by the numbers with
which they compare the program's variables.
"""

from collections.abc import Collection
from pathlib import Path

from ringleader.train.between_calls.files.written_files import ReadFile, WrittenFile, WrittenFiles
from ringleader.train.generation.context import MemberContext
from ringleader.train.job_warnings import JobWarnings

FILE = "file"
KEEP = "keep it with session.save(name, object), or weights with session.best or session.checkpoint()"


class ProgramFiles:
    """One member's files. The first member reports."""

    def __init__(self, context: MemberContext, warnings: JobWarnings) -> None:
        self._context = context
        self._warnings = warnings
        self._written = WrittenFiles()
        self._workspace: Path | None = None
        self._known: set[str] = set()
        self._open: dict[str, list[str]] = {}
        self._lost: list[WrittenFile] = []
        self._read: list[ReadFile] | None = None
        self._first_read: dict[str, tuple[int, int]] | None = None

    def begin(self, workspace: Path | None) -> None:
        """Look at what the program's thread, this one, writes from here on.

        Args:
            workspace: the worker's own working directory, which is removed behind it; None: it has none of its own.
        """
        self._workspace = None if workspace is None else workspace.absolute()
        if workspace is not None or self._context.spec.workers.max > 1:
            self._written.begin()

    def close(self) -> None:
        """Look no longer. Idempotent."""
        self._written.close()

    @property
    def texts(self) -> dict[str, str]:
        """What is compared: the paths that each line has written, by name."""
        return {f"{FILE} {line}": repr(sorted(names)) for line, names in self._open.items()}

    def look(self, *, again: bool) -> None:
        """Take what was written since the last call; `again`: by lines that had run on the others before."""
        if self._read is None:
            self._read = self._written.take_read()
        for file in self._written.take():
            if again or file.line in self._known:
                continue
            if self._workspace is None or not file.place.is_relative_to(self._workspace):
                self._open.setdefault(file.line, []).append(file.name)
            elif file.place.exists():  # else it has served its purpose
                self._known.add(file.line)
                self._lost.append(file)
        current = self._context.current
        if current is not None:
            lost, self._lost = self._lost, []
            for file in lost if current.rank == 0 else ():
                self._tell_lost(file)

    def state(self) -> dict[str, tuple[int, int]]:
        """What the job's first workers read at the top of the program: files by name, each with its stamp."""
        if self._first_read is None:
            self._first_read = {file.name: file.stamp for file in self._read or ()}
        return self._first_read

    def restore(self, state: dict[str, tuple[int, int]] | None) -> None:
        """Take over what peers know; None: they are of an earlier version."""
        self._first_read = state

    @property
    def read_since(self) -> str:
        """A file that the top of the program has read here, and another one, or none, when the job began, with its
        line; empty where there is none."""
        first = self._first_read
        changed = [f for f in self._read or () if first is not None and first.get(f.name) != f.stamp]
        return f"{changed[-1].name} ({changed[-1].line})" if changed else ""

    def compared(self, not_alike: Collection[str]) -> None:
        """Note that members have compared what `texts` names: all wrote the same, but for these."""
        written, self._open = self._open, {}
        self._known |= written.keys()
        for line, names in written.items():
            if f"{FILE} {line}" not in not_alike and self._context.generation.rank == 0:
                self._tell_shared(line, sorted(names)[0])

    def _tell_lost(self, file: WrittenFile) -> None:
        self._warnings.say(
            FILE,
            f"{file.name} ({file.line}) is written into a worker's own working directory, which is removed when the "
            f"worker ends.",
            f"To have it afterwards {KEEP}; or write it to an absolute path, behind `if session.is_main:`.",
        )

    def _tell_shared(self, line: str, name: str) -> None:
        self._warnings.say(
            FILE,
            f"every worker writes {name} ({line}): several write it at once, and who runs the line again writes it "
            f"again, so that it may be torn.",
            f"Write `if session.is_main:` before it; or {KEEP}.",
        )
