"""The run to compare with: the same job file in one process, without a cluster and without a kill."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import RingleaderError, WaitTimeout

DEADLINE_S = 240.0

# Nicer than Ray's own workers: it runs beside them and takes what they leave over.
_PROGRAM = """
import os
import sys
from pathlib import Path

os.nice(19)

import torch

from ringleader.spec import JobSpec
from ringleader.train.local import run_local
from ringleader.train.run import function_of

torch.set_num_threads(1)
spec = JobSpec.load(Path(sys.argv[1]))
print(run_local(spec, function_of(spec), Path(sys.argv[2]))[0].digest)
"""


class UndisturbedRunFailed(RingleaderError):
    """There is nothing to compare with."""

    code = "undisturbed_run_failed"


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A run on its way. Use `undisturbed`, which also ends it."""

    process: subprocess.Popen[str]

    def sha256(self) -> str:
        """The `weights_sha256` it ended with; waits for it.

        Raises:
            WaitTimeout: it did not end within `DEADLINE_S` from now.
            UndisturbedRunFailed: it ended with an error, which it has printed.
        """
        try:
            said, _ = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise WaitTimeout(
                f"the reference run without a kill did not end within {DEADLINE_S:.0f} s."
            ) from None
        if self.process.returncode:
            raise UndisturbedRunFailed(
                f"the reference run without a kill failed with code {self.process.returncode}.",
                hint="Its error is printed above.",
            )
        # The last word: a library may have printed something before it.
        return said.split()[-1]


@contextmanager
def undisturbed(job_file: Path, folder: Path) -> Iterator[Undisturbed]:
    """Run `job_file` beside the block, its artifacts into `folder`; killed where the block ends before it.

    In a process of its own: commands load no torch.
    """
    command = [sys.executable, "-c", _PROGRAM, str(job_file), str(folder)]
    # A group of its own: Ctrl-C is for the demonstration, which kills it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            yield Undisturbed(process)
        finally:
            process.kill()
