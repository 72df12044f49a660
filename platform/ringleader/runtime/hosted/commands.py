"""The command line of a hosted program on one member, by the framework of the job."""

import sys
from pathlib import Path

import ringleader
from ringleader.errors import EntrypointImport
from ringleader.runtime.hosted.store import GenerationStore
from ringleader.runtime.hosted.variables import PARAMS
from ringleader.runtime.messages import MemberTask
from ringleader.spec.program.framework import argv_of

ROOT = str(Path(ringleader.__file__).parents[1])
DRIVER = (
    "import json, os, sys; sys.path.insert(0, {root!r}); "
    "from ringleader.runtime.hosted.ray_train_worker import FunctionCall; "
    "from ringleader.runtime.hosted.ray_train_driver import main; "
    "main(FunctionCall({entrypoint!r}, json.loads(os.environ[{params!r}]), {python_path!r}, {threads}), {nodes!r}, "
    "{given!r})"
)
"""The params come by the environment: a command line is shown to every account of the machine."""


def check_can_run(task: MemberTask, folder: Path) -> None:
    """Check that the job's program can be run here. Raises EntrypointImport: it cannot."""
    spec = task.spec
    script = argv_of(spec.entrypoint)[0]
    if spec.framework == "torchrun" and not (folder / script).is_file():
        raise EntrypointImport(f"{script} is not in the working directory.", hint="Put it into working_dir.")
    if spec.framework == "ray_train_hosted" and task.run_as is not None:
        raise EntrypointImport(
            "framework: ray_train_hosted is not run under an account of the job's own, which reaches no part of Ray.",
            hint="Use framework: ray_train, which runs the function on the engine.",
        )


def command_of(
    task: MemberTask, store: GenerationStore, python_path: list[str], *, given: list[str]
) -> list[str] | None:
    """The program of this member; None where it only holds a place for another one's.

    Args:
        given: the names of the variables of the job itself.
    """
    spec = task.spec
    if spec.framework == "torchrun":
        return [sys.executable, *argv_of(spec.entrypoint)]
    if store.rank:
        return None
    driver = DRIVER.format(
        root=ROOT,
        entrypoint=spec.entrypoint,
        params=PARAMS,
        python_path=tuple(python_path),
        threads=spec.workers.threads,
        nodes=store.nodes(),
        given=given,
    )
    return [sys.executable, "-c", driver]
