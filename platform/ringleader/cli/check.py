"""The command that runs a job's program on a few batches, and names what would differ on another worker."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from ringleader.cli.output import CommandSession, with_output
from ringleader.cli.submit import JOB_FILE
from ringleader.errors import RingleaderError, SpecInvalid
from ringleader.spec import JobSpec
from ringleader.spec.program.entrypoint import check_entrypoint, with_framework

BUDGET_S = 120.0
"""The time for all runs together, imports included."""
ENGINE = "ringleader.train.program_check.runs"
_RUNS = {"first": "first", "again": "second", "joins": "third"}


class NotChecked(RingleaderError):
    """The program could not be run to the end of its check within the time limit."""

    code = "not_checked"


@click.command()
@click.argument("file", type=JOB_FILE)
@with_output
def check(session: CommandSession, file: Path) -> int:
    """Run a few batches of a job and report what is not reproducible.

    Runs the program of the job FILE on a few batches, then twice as a worker that joins later, after the loops and
    inside one, and lists what differs. Each run takes at most four steps per loop and eight session calls. Needs no
    control plane. Files that the program writes are written on this machine. Exit code 1 if something differs.
    """
    spec, here = JobSpec.load(file), file.absolute().parent
    folder = here / _folder(spec)
    spec = with_framework(spec, folder)
    if spec.hosted:
        why = f"framework: {spec.framework} runs the program as it is, and promises nothing that could be checked"
        finding = {"pointer": "/framework", "value": spec.framework, "allowed": "framework: native"}
        raise SpecInvalid([finding | {"message": f"{why}; allowed: framework: native"}])
    check_entrypoint(spec, folder)
    found = found_in(spec, folder)
    session.show({"job": spec.name, "found": found}, _told(spec, found))
    return 1 if found else 0


def found_in(spec: JobSpec, folder: Path, budget_s: float = BUDGET_S) -> list[dict[str, str]]:
    """Run a program three times; the differences of the later runs as {"variable", "line", "cure"}, each variable once.

    Raises:
        NotChecked: it raised an exception in its first run, or took too long.
    """
    until = time.monotonic() + budget_s
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="ringleader-check-") as place:
        job = Path(place) / "job.json"
        job.write_text(json.dumps(spec.model_dump(mode="json")))
        for which in _RUNS:
            if which == "joins" and found:
                break  # what they have found explains another loss
            for finding in _run(job, folder, which, until):
                found.setdefault(finding["variable"].rpartition(".")[2], finding)
    return list(found.values())


def _run(job: Path, folder: Path, which: str, until: float) -> list[dict[str, str]]:
    # In a file: the program may print anything on standard output.
    answer = job.with_name("found.json")
    # What the first run has found must not pass for what the second one found.
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", ENGINE, str(job), str(job.parent), which]
    try:
        ended = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=max(0.0, until - time.monotonic()),
            env=dict(os.environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotChecked(
            f"all runs together, imports included, took more than {BUDGET_S:g} s; stopped in the {_RUNS[which]} run.",
            hint="Give the program less data, for example through the job file's params.",
        ) from None
    if not answer.exists():
        tail = "\n".join(ended.stderr.splitlines()[-10:])
        said = f":\n{tail}" if tail else " and printed no error."
        raise NotChecked(
            f"the {_RUNS[which]} run ended with code {ended.returncode}{said}", hint=_why_ended(tail)
        )
    told: dict[str, Any] = json.loads(answer.read_text())
    if "error" in told:
        raise NotChecked(told["error"], hint=told["hint"] or "")
    found: list[dict[str, str]] = told["found"]
    return found


def _why_ended(tail: str) -> str:
    """The hint for a process that ended before it could answer: its likely cause, or the cure."""
    if "No module named 'torch'" in tail:
        return 'Install torch in the environment of this command: pip install "ringleader[engine]".'
    return "The program called os._exit, or a signal killed it (a negative code; -9 usually means out of memory)."


def _folder(spec: JobSpec) -> str:
    """The working directory, relative to the job file."""
    folder = spec.working_dir or "."
    if folder.startswith("sha256:"):
        finding = {"pointer": "/working_dir", "value": folder, "allowed": "a folder"}
        raise SpecInvalid(
            [finding | {"message": "a packed working directory cannot be checked locally; allowed: a folder"}]
        )
    return folder


def _told(spec: JobSpec, found: list[dict[str, str]]) -> str:
    if not found:
        return f"{spec.name}: no differences found: lines that run again give the same values."
    lines = [f"{each['variable']} ({each['line']}): {each['cure']}" for each in found]
    return "\n".join([f"{spec.name}: these would differ on a worker that joins later:", *lines])
