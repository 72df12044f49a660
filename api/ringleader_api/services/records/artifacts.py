"""The files a job left behind: RINGLEADER_HOME/jobs/<id>/artifacts, plain files only, by name."""

import re
from pathlib import Path

from ringleader.wire.artifacts import FILE
from ringleader.wire.views import View
from ringleader_api.problems import NotFound
from ringleader_api.services.pages import ListCursors
from ringleader_api.services.users.access import load
from ringleader_api.store import Store

WEIGHTS = "weights.safetensors"
_KEYS = ListCursors(re.compile(rf"artifacts/({FILE.pattern})"))


class Artifact(View):
    """One file of a job."""

    name: str
    size_bytes: int


class ArtifactPage(View):
    """The files of a job, by name."""

    items: list[Artifact]
    next_cursor: str | None = None


class Artifacts:
    """Reads artifacts below `home`."""

    def __init__(self, store: Store, home: Path) -> None:
        self._store = store
        self._home = home

    def page(self, job_id: str, limit: int, cursor: str | None) -> ArtifactPage:
        """A page of the job's files; `cursor` continues behind the last file of the page before."""
        after = "" if cursor is None else _KEYS.parts(cursor)[0]
        files = [f for f in self._files(job_id) if f.name > after]
        items = [Artifact(name=f.name, size_bytes=f.stat().st_size) for f in files[:limit]]
        more = len(files) > limit
        return ArtifactPage(
            items=items, next_cursor=_KEYS.cursor(f"artifacts/{items[-1].name}") if more else None
        )

    def path(self, job_id: str, name: str) -> Path:
        """The file called `name`, or the only file with that name before its suffix.

        Raises:
            NotFound: naming what there is.
        """
        files = self._files(job_id)
        found = [f for f in files if f.name == name] or [f for f in files if f.stem == name]
        if len(found) != 1:
            there = ", ".join(f.name for f in files) or "none yet"
            raise NotFound(f"job {job_id} has no artifact {name!r}.", hint=f"Its artifacts: {there}.")
        return found[0]

    def _files(self, job_id: str) -> list[Path]:
        with self._store.read() as session:
            load(session, job_id)
        folder = _folder(self._home, job_id)
        if not folder.is_dir():
            return []
        # No links: jobs write this folder, and a link could lead to any file of the stack.
        return sorted(
            f for f in folder.iterdir() if FILE.fullmatch(f.name) and not f.is_symlink() and f.is_file()
        )


def weights_file(home: Path, job_id: str) -> Path | None:
    """The final weights that the job has left behind; None: there are none."""
    return saved_file(home, job_id, WEIGHTS)


def saved_file(home: Path, job_id: str, name: str) -> Path | None:
    """The job's file of that name; None: there is none."""
    path = _folder(home, job_id) / name
    return path if path.is_file() and not path.is_symlink() else None


def _folder(home: Path, job_id: str) -> Path:
    return home / "jobs" / job_id / "artifacts"
