"""The script that joins nodes to one Ray cluster, `infra/ray/cluster.sh`, run as its users run it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ray_environ import ray_environ

SCRIPT = Path(__file__).parents[1] / "infra/ray/cluster.sh"


def script_environ(folder: Path, port: int) -> dict[str, str]:
    """For the script: a head on that port, a small object store, Ray's files below `folder`."""
    return {
        **ray_environ(),
        "RAY_BIN": str(Path(sys.executable).parent / "ray"),
        "RAY_PORT": str(port),
        "RAY_TMPDIR": str(folder / "ray"),
        "OBJECT_STORE_BYTES": "100000000",
    }


def make_token(path: Path) -> None:
    subprocess.run([str(SCRIPT), "token", str(path)], check=True, timeout=20, capture_output=True)


@contextmanager
def running(
    folder: Path, environ: dict[str, str], *words: str, within: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """The script in the foreground, ended as Ctrl-C ends it, also where these tests run in the background of a shell,
    which has them and all they start ignore that.

    Args:
        within: what to put before the command, to run it elsewhere.
    """
    with (folder / f"{'-'.join([words[0], *words[3:]])}.log").open("wb") as log:
        process = subprocess.Popen(
            ["env", "--default-signal=INT", *within, str(SCRIPT), *words],
            env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that were started with Ray's files below the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line, environ = (
                (path / name).read_bytes().replace(b"\0", b" ") for name in ("cmdline", "environ")
            )
        except OSError:
            continue
        if os.fsencode(folder / "ray") in line + environ:
            found.append(line.decode(errors="replace"))
    return found
