"""The run to compare with: the same job file in one process, without a cluster and without a kill."""

import subprocess
import sys
from pathlib import Path

from ringleader.errors import WaitTimeout

DEADLINE_S = 240.0

_PROGRAM = """
import sys
from pathlib import Path

import torch

from ringleader.spec import JobSpec
from ringleader.train.local import run_local
from ringleader.train.run import load_function

torch.set_num_threads(1)
spec = JobSpec.load(Path(sys.argv[1]))
print(run_local(spec, load_function(spec.entrypoint), Path(sys.argv[2]))[0].digest)
"""


def undisturbed_sha256(job_file: Path, folder: Path) -> str:
    """The `weights_sha256` of an undisturbed run. In a process of its own: commands load no torch."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(job_file), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise WaitTimeout(f"the undisturbed run did not end within {DEADLINE_S:.0f} s.") from None
    return done.stdout.split()[-1]
