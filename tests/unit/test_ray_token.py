"""The token of Ray's ports: made in the home alone, whole, and known to nobody else."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ray_environ import ray_environ

from ringleader.cli.stack.home import Home
from ringleader.ray_token import LONGEST, RayTokenExposed, RayTokenTorn, token_file

HANG_S = 60
WHOLE = "0123456789abcdef"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_home_without_a_token_is_given_one_and_keeps_it(tmp_path: Path) -> None:
    path = token_file(tmp_path / "home", None)
    assert (path, mode(path), mode(path.parent)) == (tmp_path / "home" / "ray_token", 0o600, 0o700)
    token = path.read_text()
    assert len(token) == 43
    assert token_file(tmp_path / "home", "").read_text() == token


@pytest.mark.parametrize(
    "left", [b"", b"\n", b"\0" * 43, b"0123456789abcde", b"\xff" * 43, b"x" * (LONGEST + 1)]
)
def test_a_torn_token_starts_no_cluster(left: bytes, tmp_path: Path) -> None:
    (tmp_path / "ray_token").write_bytes(left)
    (tmp_path / "ray_token").chmod(0o600)
    with pytest.raises(RayTokenTorn, match="holds no token of 16 characters"):
        token_file(tmp_path, None)
    (tmp_path / "ray_token").write_text(WHOLE + "\n")
    assert token_file(tmp_path, None) == tmp_path / "ray_token"


def test_what_is_no_file_is_no_token_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for named in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(RayTokenTorn):
            token_file(tmp_path, str(named))


def test_nothing_is_made_or_changed_where_a_name_points(tmp_path: Path) -> None:
    named = tmp_path / "mistaken" / "token"
    with pytest.raises(RayTokenTorn):
        token_file(tmp_path / "home", str(named))
    assert list(tmp_path.iterdir()) == []
    named.parent.mkdir()
    named.write_text(WHOLE)
    named.chmod(0o644)
    with pytest.raises(RayTokenExposed, match="can be read by others"):
        token_file(tmp_path / "home", str(named))
    assert mode(named) == 0o644


def test_a_token_that_others_could_read_is_replaced_by_whoever_holds_the_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    known = home.ray_token.read_text()
    home.ray_token.chmod(0o640)
    with pytest.raises(RayTokenExposed):
        token_file(home.root, None)
    with home.held():
        assert token_file(home.root, None).read_text() != known
        assert mode(home.ray_token) == 0o600


def test_a_head_says_what_is_wrong_with_its_token(tmp_path: Path) -> None:
    (tmp_path / "ray_token").touch(0o600)
    command = [sys.executable, "-m", "ringleader.runtime.head", "--home", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, check=False, env=ray_environ()
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path / 'ray_token'} holds no token")
    assert "Traceback" not in done.stderr
