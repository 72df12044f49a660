"""A job's working directory, checked before anything is sent: the folder, and the files that the job file names."""

from pathlib import Path

from ringleader.errors import SpecInvalid
from ringleader.spec.job import JobSpec
from ringleader.spec.program.entrypoint import check_entrypoint, missing_folders, script_of
from ringleader.spec.program.framework import argv_of
from ringleader.spec.requirements import check_requirements

PACKED = "sha256:"
"""The prefix of a working directory that is packed already; its digest follows."""


class JobFileWarning(UserWarning):
    """Something that the job file names and the working directory lacks: the nodes may have it."""


def root_of(spec: JobSpec, base: Path, given: str | Path | None = None) -> Path | None:
    """The folder to pack; None: the job has none, or one that is packed already.

    Args:
        base: where the job file's relative paths start.
        given: a folder instead of the job file's, relative to the current directory.
    """
    if given is not None:
        return Path.cwd() / given
    if spec.working_dir is None or spec.working_dir.startswith(PACKED):
        return None
    return base / spec.working_dir


def check_working_dir(spec: JobSpec, root: Path | None, base: Path | None = None) -> list[str]:
    """Check that the folder exists, with the training function and the requirements file if the job file names one.

    Args:
        root: the folder to pack, of `root_of`.
        base: where the job file lies.

    Returns:
        Sentences on what is missing here, and keeps no job from starting where the nodes have it.

    Raises:
        SpecInvalid: naming what is wrong.
    """
    if root is None:
        if spec.framework == "torchrun" and spec.working_dir is None:
            why = f"the script {argv_of(spec.entrypoint)[0]} is in no working directory"
            raise _refusal("/working_dir", None, why, "the folder that has the script")
        if spec.working_dir is None and isinstance(spec.requirements, str):
            why = f"{spec.requirements} is a path in the working directory, but the job has none"
            raise _refusal(
                "/requirements", spec.requirements, why, "a working_dir, or a list of entries name==version"
            )
        return _left_here(spec, base)
    if not root.is_dir():
        why = f"{root} is not a folder" if root.exists() else f"the folder {root} does not exist"
        allowed = "a folder, relative to the job file"
        raise _refusal("/working_dir", spec.working_dir or str(root), why, allowed)
    check_requirements(spec.requirements, root)
    if spec.framework == "torchrun":
        script_of(spec, root)
        return [" ".join(sentences) for sentences in missing_folders(spec.env, root)]
    found = check_entrypoint(spec, root)
    module = spec.entrypoint.partition(":")[0]
    told = [] if found else [f"the module {module} is not in {root}, so it must be installed on the nodes."]
    return told + [" ".join(sentences) for sentences in missing_folders(spec.env, root)]


def _left_here(spec: JobSpec, base: Path | None) -> list[str]:
    """A sentence on the function's file, where it lies beside a job file that names no folder to pack."""
    file = f"{spec.entrypoint.partition(':')[0]}.py"
    if spec.working_dir is not None or base is None or not (base / file).is_file():
        return []
    return [
        f"{file} lies beside the job file, but is not sent to the nodes: the job file has no working_dir. "
        "Set working_dir: . to send it."
    ]


def _refusal(pointer: str, value: str | None, message: str, allowed: str) -> SpecInvalid:
    message = f"{message}; allowed: {allowed}"
    return SpecInvalid([{"pointer": pointer, "value": value, "allowed": allowed, "message": message}])
