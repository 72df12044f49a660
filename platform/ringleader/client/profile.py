"""The address and token of the control plane: from the environment, else the profile that `ringleader up` wrote."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.errors import RingleaderError
from ringleader.home_folder import make_home


class NoControlPlane(RingleaderError):
    """Neither environment nor profile says where the control plane is."""

    code = "no_control_plane"


@dataclass(frozen=True, slots=True)
class Profile:
    """An address and the token for it."""

    url: str
    token: str = field(repr=False)


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """RINGLEADER_HOME, default ~/.ringleader."""
    return Path(environ.get("RINGLEADER_HOME") or Path.home() / ".ringleader").expanduser().absolute()


def find(
    url: str | None = None, token: str | None = None, environ: Mapping[str, str] = os.environ
) -> Profile:
    """The profile to use. A token is never sent to an address it does not belong to.

    Raises:
        NoControlPlane: when nothing says where to connect.
    """
    saved = load(home(environ))
    address = url or environ.get("RINGLEADER_URL") or (saved.url if saved else None)
    if not address:
        raise NoControlPlane(
            "no control plane is configured: RINGLEADER_URL is not set, and there is no "
            f"{home(environ) / 'profile.json'}.",
            hint="Start one with `ringleader up`, or log in to one with `ringleader login URL`.",
        )
    own = saved.token if saved and saved.url.rstrip("/") == address.rstrip("/") else ""
    return Profile(address.rstrip("/"), token or environ.get("RINGLEADER_TOKEN") or own)


def load(directory: Path) -> Profile | None:
    """The saved profile, if there is a readable one."""
    try:
        saved = json.loads((directory / "profile.json").read_text(encoding="utf-8"))
        return Profile(str(saved["url"]), str(saved["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(directory: Path, profile: Profile) -> None:
    """Write the profile, readable by its owner only, in one move. Raises HomeExposed."""
    make_home(directory)
    descriptor, partial = tempfile.mkstemp(prefix=".profile.", dir=directory)  # mkstemp: mode 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"url": profile.url, "token": profile.token}, file)
    Path(partial).replace(directory / "profile.json")
