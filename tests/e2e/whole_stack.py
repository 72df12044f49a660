"""The whole stack as a context: `ringleader up --detach` in a home of its own, taken down afterwards."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.client import Client
from ringleader.runtime.nodes.node_scratch import SCRATCH

UP_DEADLINE_S = 270
DOWN_DEADLINE_S = 60


@dataclass(frozen=True)
class Running:
    """A control plane that answers, and the way in."""

    url: str
    home: Path
    token: str = field(repr=False)
    client: Client = field(repr=False)


@contextmanager
def whole_stack(
    *options: str, settings: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> Iterator[Running]:
    """Everything `ringleader up` starts with these options and variables; `before` stands before that command."""
    with tempfile.TemporaryDirectory(prefix="rl-e2e-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        try:
            said = json.loads(
                _ringleader(
                    home,
                    UP_DEADLINE_S,
                    *("up", "--detach", "-o", "json", *options),
                    settings=settings,
                    before=before,
                )
            )
            token = (home / "token").read_text(encoding="utf-8").strip()
            with Client(said["url"], token) as client:
                yield Running(said["url"], home, token, client)
        finally:
            _ringleader(home, DOWN_DEADLINE_S, "down")


def _ringleader(
    home: Path,
    deadline_s: float,
    *arguments: str,
    settings: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> str:
    """Run a command on that home; its words are the error when it fails."""
    kept = {name for name in os.environ if name == SCRATCH or not name.startswith("RINGLEADER_")}
    done = subprocess.run(
        [*before, sys.executable, "-m", "ringleader.cli.main", *arguments],
        env={**{name: os.environ[name] for name in kept}, **(settings or {}), "RINGLEADER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"
        raise AssertionError(f"ringleader {' '.join(arguments)} ended with {done.returncode}:\n{said}")
    return done.stdout
