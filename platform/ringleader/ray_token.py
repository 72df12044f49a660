"""The file with the token that Ray's ports ask for. Whoever has the token runs code as the owner of the cluster."""

import os
import secrets
import stat
from pathlib import Path

from ringleader.errors import RingleaderError
from ringleader.files import write_once
from ringleader.home_folder import make_home

SHORTEST = 16
"""The least length in characters. Tokens made here have 43; a shorter one was cut, or could be guessed."""
LONGEST = 4096
"""The most bytes that are read of a file that should hold a token."""


class RayTokenTorn(RingleaderError):
    """The file that should hold Ray's token does not."""

    code = "ray_token_torn"


class RayTokenExposed(RingleaderError):
    """The file with Ray's token can be read by others."""

    code = "ray_token_exposed"


def new_token() -> str:
    return secrets.token_urlsafe(32)


def token_in(path: Path) -> str:
    """The token that a file holds; empty where it holds none that can be sent, as after a power cut."""
    return _read(path)[0]


def is_usable(path: Path) -> bool:
    """Whether the file holds a whole token that its owner alone can read."""
    token, exposed = _read(path)
    return len(token) >= SHORTEST and not exposed


def token_file(home: Path, named: str | None) -> Path:
    """The file with the token of a cluster to be started: the `named` one, which has to exist, else that of the home
    folder, made where there is none.

    Raises:
        RayTokenTorn: it holds no token of `SHORTEST` characters.
        RayTokenExposed: others can read it.
        HomeExposed: others can write to the home folder.
    """
    path = Path(named or home / "ray_token").absolute()
    # A name given from outside may be mistaken: nothing is made there, and no mode is changed.
    if not named:
        make_home(home)
        if not path.exists():
            write_once(path, new_token())
    token, exposed = _read(path)
    if len(token) < SHORTEST:
        raise RayTokenTorn(
            f"{path} holds no token of {SHORTEST} characters or more for Ray's ports.",
            hint="Delete the file in RINGLEADER_HOME: a new one is made at the start. One that RAY_AUTH_TOKEN_PATH "
            "names has to be there before.",
        )
    if exposed:
        raise RayTokenExposed(
            f"{path} can be read by others.",
            hint="Whoever has read it controls the cluster: put a new token there with chmod 600, or delete the file "
            "in RINGLEADER_HOME, and a new one is made.",
        )
    return path


def _read(path: Path) -> tuple[str, bool]:
    """The token in the file, empty where there is none, and whether others can read it."""
    try:
        # Not blocking: without a writer, opening a pipe would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return "", False
    try:
        # Of the open file, not of its name: another may lie there by the time of a second look.
        mode = os.fstat(descriptor).st_mode
        told = os.read(descriptor, LONGEST + 1) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    token = told.decode("ascii", "replace").strip()
    whole = len(told) <= LONGEST and token.isascii() and token.isprintable()
    return token if whole else "", bool(mode & 0o077)
