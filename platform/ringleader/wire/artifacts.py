"""The files of a job: artifacts that a training function makes at a step, and the names of files made of it."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a program may call one. No folders: the file's name is made of it."""
MOST_FILE = 200
FILE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_FILE - 1}}}")
SUFFIXES = {
    "object": frozenset(["json", "pt", "safetensors"]),
    "image": frozenset(["png"]),
    "histogram": frozenset(["json"]),
    "text": frozenset(["txt"]),
}
"""By kind, the suffixes of files. There is no other: MLflow's page shows HTML and SVG as such."""
MOST_BYTES = 16 << 20
"""The most that one may hold. They travel with heartbeats, so that no file system has to be shared."""
MOST_AT_ONCE = 64 << 20
"""The most that those of one step may hold together: every member keeps them until they are stored."""
MOST_FILES = 10_000
MOST_OF_JOB = 4 << 30
"""The most files and bytes of one job. What is beyond is refused, and the job goes on."""

MOST_NAMED = 4
"""The most jobs that the name of a report's file names."""


@dataclass(frozen=True, slots=True)
class SavedArtifact:
    """One artifact.

    Attributes:
        step: committed steps when it was made.
        kind: one of those in `SUFFIXES`.
        suffix: of its file, without the dot.
    """

    name: str
    step: int
    kind: str
    suffix: str
    content: bytes

    @property
    def file(self) -> str:
        """Its file's name. With the step: what a later attempt makes at the same step is the same file."""
        return f"{self.name}-{self.step:08d}.{self.suffix}"


def event_file_name(job_id: str, created_at: datetime) -> str:
    """The name of the file with a job's metrics for TensorBoard, which looks for this beginning."""
    return f"events.out.tfevents.{int(created_at.timestamp())}.{job_id}"


def report_name(job_ids: Sequence[str]) -> str:
    """The name of the file with a report on these jobs: another one for other jobs."""
    if len(job_ids) == 1:
        return f"report-{_plain(job_ids[0])}.html"
    if len(job_ids) <= MOST_NAMED:
        # Beginnings of ids are times: their ends tell jobs apart.
        return f"comparison-{'-'.join(_plain(job_id)[-8:] for job_id in job_ids)}.html"
    digest = hashlib.sha256(",".join(job_ids).encode()).hexdigest()
    return f"comparison-{len(job_ids)}-jobs-{digest[:8]}.html"


def _plain(job_id: str) -> str:
    """What is asked for as a job's id may be any text."""
    return re.sub(r"[^A-Za-z0-9_]", "", job_id)
