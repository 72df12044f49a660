"""A cluster process without Ray, whose calls hang, fail, end it, or wait until they may; run by tests as a script."""

import os
import threading
from pathlib import Path
from typing import Any

from ringleader.runtime.nodes.cluster import AttemptUsed, FaultMissed
from ringleader.runtime.nodes.cluster_process import serve
from ringleader.runtime.nodes.layout import ClusterLayout


class OddCluster:
    def __init__(self, address: str) -> None:
        if not address:
            raise ValueError("no address")

    def supervisors(self) -> list[tuple[str, int]]:
        """The process's id stands for a job's."""
        return [(str(os.getpid()), 1)]

    def layout(self) -> ClusterLayout:
        return ClusterLayout({"n1": (4.0, 0.0, 8.0)}, {}, {})

    def warm(self, *_: Any) -> None:
        threading.Event().wait()

    def forget(self, job_id: str) -> None:
        os._exit(7)

    def start(self, launch: Any) -> None:
        raise AttemptUsed("attempt 1 cannot start again.", hint="Start a new attempt.")

    def release(self, job_id: str, attempt: int) -> None:
        raise ZeroDivisionError(f"of {job_id}")

    def ask(self, demand: Any) -> Any:
        return demand

    def fault(self, job_id: str, attempt: int, fault: str, worker: str | None, for_s: float) -> str:
        """`job_id` is a folder with two pipes: one is told that it begins, the other says when it may go on."""
        if not worker:
            raise FaultMissed("there is no such worker.")
        (Path(job_id) / "begun").write_text("begun")
        return (Path(job_id) / "may").read_text()


if __name__ == "__main__":
    serve(OddCluster)
