"""A control plane as a process, over a cluster that is a folder: its state outlives any killed process.

`python -m ringleader.bench.control_plane.plane FOLDER` with the `RINGLEADER_*` variables of
`python -m ringleader_api`. A supervisor is a file; nothing trains.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringleader.bench.processes.children import die_with_parent
from ringleader_api.__main__ import main
from ringleader_api.backend import AttemptGone, Launch, NobodyThere
from ringleader_api.scheduling import Demand, NodeShape, Seen


class FolderCluster:
    """`Backend`: `alive/JOB.ATTEMPT` is a supervisor, `gone/JOB.ATTEMPT` one that was released, `again/JOB.ATTEMPT`
    one that was asked for although it was there.

    Args:
        cpus: of its one node.
    """

    def __init__(self, folder: Path, cpus: float) -> None:
        self._alive = folder / "alive"
        self._gone = folder / "gone"
        self._again = folder / "again"
        self._cpus = cpus
        for place in (self._alive, self._gone, self._again):
            place.mkdir(parents=True, exist_ok=True)

    def start(self, launch: Launch) -> None:
        """Start a supervisor; as with Ray's named actors, another request for a living one changes nothing."""
        name = f"{launch.job_id}.{launch.attempt}"
        if (self._gone / name).exists():
            raise AttemptGone(f"{name} has been here.")
        # Whole before it has its name: a control plane may be killed while it writes.
        partial = self._alive / f".{name}.{os.getpid()}"
        partial.write_text(json.dumps({"url": launch.ingest_url, "token": launch.ingest_token}))
        try:
            # Not a rename: a link fails where the name exists, also for two that start the same attempt at once.
            os.link(partial, self._alive / name)
        except FileExistsError:
            (self._again / name).touch()
        partial.unlink()

    def supervisors(self) -> set[tuple[str, int]]:
        return attempts_in(self._alive)

    def answers(self, asked: Sequence[tuple[str, int]]) -> dict[tuple[str, int], bool]:
        return dict.fromkeys(asked, True)

    def resize(self, job_id: str, attempt: int, workers_min: int, workers_max: int) -> None: ...

    def cancel(self, job_id: str, attempt: int, grace_s: float) -> None:
        self.release(job_id, attempt)

    def pause(self, job_id: str, attempt: int, grace_s: float) -> None:
        self.release(job_id, attempt)

    def release(self, job_id: str, attempt: int) -> None:
        name = f"{job_id}.{attempt}"
        with suppress(FileNotFoundError):
            (self._alive / name).rename(self._gone / name)

    def node_lost(self, job_id: str, attempt: int) -> bool:
        return False

    def unposted(self, home: Path, job_id: str, attempt: int) -> Iterator[list[dict[str, Any]]]:
        return iter(())

    def forget(self, job_id: str) -> None:
        for file in self._gone.glob(f"{job_id}.*"):
            file.unlink(missing_ok=True)

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        raise NobodyThere("nothing trains here.")

    def capacity(self) -> Seen:
        return Seen(nodes=[NodeShape("n1", self._cpus, 0, 1e9)])

    def ask(self, demand: Demand) -> None: ...

    def close(self) -> None: ...


def attempts_in(folder: Path) -> set[tuple[str, int]]:
    """The job's id and the number of each attempt that has a file in the folder."""
    # A leading dot marks a file that `start` has not finished.
    names = (file.name for file in folder.iterdir() if not file.name.startswith("."))
    return {(job_id, int(attempt)) for job_id, _, attempt in (name.partition(".") for name in names)}


def _log_to(path: Path) -> None:
    """Append standard error, and so the log, to a file; standard output says where the process listens."""
    with path.open("ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())


if __name__ == "__main__":
    die_with_parent()
    where = Path(sys.argv[1])
    _log_to(where.with_name("plane.log"))
    sys.exit(main(lambda settings: FolderCluster(where, float(sys.argv[2]))))
