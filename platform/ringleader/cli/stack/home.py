"""RINGLEADER_HOME: the places of its files, and the lock that admits one `up` at a time."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringleader.errors import RingleaderError
from ringleader.files import write_once, write_over
from ringleader.home_folder import make_home
from ringleader.ray_token import RayTokenTorn, is_usable, new_token, token_in


class AlreadyUp(RingleaderError):
    """Another `up` holds this home."""

    code = "already_up"


@dataclass(frozen=True, slots=True)
class Home:
    """A home folder. Everything in it is readable by its owner only."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def up(self) -> Path:
        """The record of the running `up`: its identity and its address."""
        return self.run / "up.json"

    @property
    def ray_token(self) -> Path:
        return self.root / "ray_token"

    @property
    def api_token(self) -> Path:
        """Written by the API at its first start."""
        return self.root / "token"

    @property
    def mlflow_socket(self) -> Path:
        """The socket that MLflow listens on; the mode of its folder decides who may connect."""
        return self.run / "mlflow.sock"

    def log(self, service: str) -> Path:
        return self.root / "log" / f"{service}.log"

    def record(self, service: str) -> Path:
        return self.run / f"{service}.json"

    def prepare(self) -> None:
        """Make the folders, and the token that Ray's ports require. Raises HomeExposed."""
        make_home(self.root)
        for folder in (self.run, self.root / "log", self.root / "mlflow"):
            folder.mkdir(exist_ok=True, mode=0o700)
        if self.run.stat().st_mode & 0o077:  # the sockets in it are its owner's, however it was made
            self.run.chmod(0o700)
        if not self.ray_token.exists():
            write_once(self.ray_token, new_token())

    def take_ray_token(self, token: Path) -> None:
        """Keep the token of a cluster that is there already, for all that starts from this home.

        Raises:
            RayTokenTorn: there is none in that file.
        """
        self.prepare()
        if not (told := token_in(token)):
            raise RayTokenTorn(
                f"{token} holds no token, and the cluster refuses connections without one.",
                hint="Copy the token file of the cluster's head; `cluster.sh token` creates one for a new cluster.",
            )
        write_over(self.ray_token, told)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold this home; the kernel lets go of it however the holder ends.

        Raises:
            AlreadyUp: another process does.
            HomeExposed: other accounts can change the home.
        """
        self.prepare()
        with (self.run / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = read_json(self.up)
                raise AlreadyUp(
                    f"`ringleader up` is already running in {self.root} (pid {other.get('pid', '?')}, "
                    f"{other.get('url', 'still starting')}).",
                    hint="Use it, stop it with `ringleader down`, or set RINGLEADER_HOME to another folder.",
                ) from None
            # Only who holds the home may take the place of what is there: a torn token, or one that others may know.
            if not is_usable(self.ray_token):
                write_over(self.ray_token, new_token())
            yield


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file by an object, in one move."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)
