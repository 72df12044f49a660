"""A job's packages on a node: installed once into a folder named after what is asked for, used by all its workers.

uv finds out what is missing beside the engine's own packages, whose versions are its constraints, and installs that
alone. Workers of a node wait for whoever installs; a folder gets its name when it is complete, and stays for jobs to
come. Whoever uses it holds a shared lock until its process ends, and only what nobody uses is removed.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ringleader.errors import RequirementsFailed
from ringleader.runtime.nodes.node_scratch import private_scratch
from ringleader.runtime.worker.requirements import RequirementsLock, engine_packages, read, refuse_replacing
from ringleader.spec import JobSpec

FOLDER = "environments"
KEEP = 8
"""Environments that stay on a node; more only where jobs use them."""
INSTALL_S = 240.0
"""Less than the five minutes after which an attempt that does not train is given up."""
LOOK_S = 0.05
"""The pause between two looks at a lock that another worker holds."""
LAST_LINES = 15
_ADDED = re.compile(r"^ \+ (?P<name>\S+)==(?P<version>\S+)$", re.MULTILINE)
_DIGEST = re.compile(r"[0-9a-f]{32}")
_held: list[int] = []
"""Descriptors of the locks of the environments that this process uses."""

Tell = Callable[[str, dict[str, Any]], None]
"""(kind of event, its data)"""


def environment_of(
    spec: JobSpec, folder: Path, tell: Tell, base: Path | None = None, hide: Collection[str] = ()
) -> Path | None:
    """The folder of the job's packages on this node, installed now if need be; None where it brings none.

    Args:
        folder: the unpacked working directory.
        tell: takes events of an installation.
        base: this node's folder for environments.
        hide: secrets that the installer may know and nobody may read.

    Raises:
        RequirementsFailed: with the installer's last lines, or naming what cannot be.
    """
    if spec.requirements is None:
        return None
    lock, own = read(spec.requirements, folder), engine_packages()
    refuse_replacing(lock, own)
    place = base or private_scratch(FOLDER)
    try:
        return PackageEnvironments(place, own).have(lock, folder, tell)
    except RequirementsFailed as error:
        message = reduce(lambda text, secret: text.replace(secret, "***"), filter(None, hide), error.message)
        raise RequirementsFailed(message, hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class PackageEnvironments:
    """The environments of a node.

    Attributes:
        own: versions of the engine's packages.
        keep: the number of environments that stay.
    """

    place: Path
    own: Mapping[str, str]
    keep: int = KEEP

    def have(self, lock: RequirementsLock, cwd: Path, tell: Tell) -> Path:
        """The folder of that lock's packages, installed now if it is not there. Raises RequirementsFailed."""
        since = time.monotonic()
        folder = self.place / lock.digest(self.own)
        used = self._open(f"{folder.name}.lock")
        try:
            _take(used, fcntl.LOCK_SH, since)  # from here on nobody removes the folder
            if not folder.is_dir():
                self._install_once(lock, folder, cwd, tell, since)
        except BaseException:
            os.close(used)
            raise
        # Never closed here: the lock has to last until this process ends.
        _held.append(used)
        # By which `_prune` tells what was used last.
        os.utime(folder)
        return folder

    def _install_once(
        self, lock: RequirementsLock, folder: Path, cwd: Path, tell: Tell, since: float
    ) -> None:
        """Install, or wait for the worker that does."""
        # A lock of its own: that of the folder is held, shared, for as long as the folder is used, and nobody would
        # ever get it exclusively.
        turn = self._open(f"{folder.name}.install")
        try:
            _take(turn, fcntl.LOCK_EX, since)
            if not folder.is_dir():
                self._install(lock, folder, cwd, tell, since)
                self._prune(but=folder.name)
        finally:
            os.close(turn)

    def _open(self, name: str) -> int:
        return os.open(self.place / name, os.O_RDWR | os.O_CREAT, 0o600)

    def _install(self, lock: RequirementsLock, folder: Path, cwd: Path, tell: Tell, since: float) -> None:
        self._sweep(folder.name)
        begun = time.monotonic()
        tell("requirements.installing", {"from": lock.name, "packages": len(lock.pins)})
        with TemporaryDirectory(prefix=f"{folder.name}.part-", dir=self.place) as part:
            target = Path(part) / "packages"
            target.mkdir()
            added = _missing(lock, self.own, Path(part), cwd, since)
            if added:
                wanted = Path(part) / "wanted.txt"
                wanted.write_text(lock.only(added))
                # The dry run has named the dependencies: nothing else may come.
                _uv(["install", "--no-deps", "--target", str(target), "-r", str(wanted)], cwd, since)
            # Also where nothing was missing: the next worker has nothing to find out then.
            target.rename(folder)
        tell(
            "requirements.installed",
            {
                "packages": [f"{name}=={version}" for name, version in added.items()],
                "took_s": round(time.monotonic() - begun, 3),
            },
        )

    def _sweep(self, ours: str) -> None:
        """Remove what installers that were killed have left, of this environment and of others."""
        for left in self.place.glob("*.part-*"):
            if left.name.startswith(ours):  # this process holds its lock
                shutil.rmtree(left, ignore_errors=True)
            else:
                self._remove_unused(left, f"{left.name.partition('.')[0]}.install")

    def _prune(self, but: str) -> None:
        """Remove the environments that have not been used for longest, but for those in use."""
        folders = [
            f for f in self.place.iterdir() if f.name != but and _DIGEST.fullmatch(f.name) and f.is_dir()
        ]
        # One less: the folder that was left out above stays too.
        for folder in sorted(folders, key=lambda f: f.stat().st_mtime, reverse=True)[self.keep - 1 :]:
            # Whoever uses it holds the lock, shared.
            self._remove_unused(folder, f"{folder.name}.lock")

    def _remove_unused(self, folder: Path, lock: str) -> None:
        """Remove a folder, unless a process holds that lock."""
        descriptor = self._open(lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _take(descriptor: int, kind: int, since: float) -> None:
    """Lock a file. Raises RequirementsFailed where another holds it for longer than an installation may take."""
    while True:
        try:
            # Polled: a blocking flock has no deadline.
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - since > INSTALL_S:
                raise RequirementsFailed(
                    f"another worker on this node did not install the job's requirements within {INSTALL_S:.0f} s.",
                    hint="Check whether a process of the job is stopped there; or require fewer packages, or install "
                    "them on the nodes.",
                ) from None
            time.sleep(LOOK_S)


def _missing(
    lock: RequirementsLock, own: Mapping[str, str], part: Path, cwd: Path, since: float
) -> dict[str, str]:
    """The versions by package to install beside those that are here, dependencies included."""
    asked, constraints = part / "asked.txt", part / "engine.txt"
    asked.write_text(lock.text)
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in own.items()))
    arguments = ["install", "--dry-run", "--python", sys.executable, "-r", str(asked), "-c", str(constraints)]
    return {found["name"]: found["version"] for found in _ADDED.finditer(_uv(arguments, cwd, since))}


def _uv(arguments: list[str], cwd: Path, since: float) -> str:
    """The output of `uv pip`. Raises RequirementsFailed where it fails or takes too long."""
    left_s = max(1.0, INSTALL_S - (time.monotonic() - since))
    command = [_binary(), "pip", *arguments, "--no-cache", "--color", "never", "--no-progress"]
    try:
        done = subprocess.run(
            command, cwd=cwd, timeout=left_s, capture_output=True, text=True, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        raise RequirementsFailed(
            f"the job's requirements were not installed within {INSTALL_S:.0f} s.",
            hint="Require fewer packages, or install them on the nodes.",
        ) from None
    said = f"{done.stdout}\n{done.stderr}".strip()
    if done.returncode:
        last = "\n".join(said.splitlines()[-LAST_LINES:])
        raise RequirementsFailed(
            f"the job's requirements cannot be installed:\n{last}",
            hint="Package indexes are set by UV_INDEX_URL, UV_FIND_LINKS and the like in the job's env, or in the "
            "requirements file.",
        )
    return said


def _binary() -> str:
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise RequirementsFailed(
            "uv, which installs the job's requirements, is not installed on this node.",
            hint="Run pip install 'ringleader[engine]' on the node.",
        ) from None
