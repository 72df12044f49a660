"""The local cluster of `ringleader up`: on loopback only, closed by a token, twice on one machine, gone at the end."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from accounts import as_nobody, needs_root
from integration.ray_home import begin_head, ray_head
from integration.sockets import listening_hosts
from processes import below, children, name_of
from waiting import wait_for

from ringleader.cli.stack.process import PidIdentity

AGENTS = 2
"""Of a raylet; they end by themselves only a minute after it."""
REPLACE = "for path in sys.argv[1:]: print(tried(os.unlink, path), tried(os.symlink, '/tmp/x', path))"
PLACE = "for path in sys.argv[1:]: print(tried(os.listdir, path), tried(os.mkdir, path + '/of-nobody'))"
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def processes_below(temp_dir: str) -> set[int]:
    """Processes that name a session's folder on their command line."""
    out = subprocess.run(["pgrep", "-f", temp_dir], capture_output=True, text=True, check=False).stdout
    return {int(pid) for pid in out.split()}


def test_two_clusters_run_side_by_side_on_loopback_only(tmp_path: Path):
    with ray_head(tmp_path / "one", 1) as (one, first), ray_head(tmp_path / "two", 1) as (two, second):
        assert one != two
        for home, temp_dir in ((tmp_path / "one", first), (tmp_path / "two", second)):
            pids = processes_below(temp_dir)
            assert {name_of(pid) for pid in pids} >= {"gcs_server", "raylet"}
            assert listening_hosts(pids) <= LOOPBACK
            assert stat.S_IMODE((home / "ray_token").stat().st_mode) == 0o600
            assert len(temp_dir) < 40, "unix socket paths are short"
    for temp_dir in (first, second):
        assert not Path(temp_dir).exists()
        assert not processes_below(temp_dir)


@needs_root
def test_another_account_can_put_nothing_in_place_of_rays_files(tmp_path: Path):
    with ray_head(tmp_path, 1) as (_, temp_dir):
        inside = [path for path in Path(temp_dir).rglob("*") if path.is_dir() and not path.is_symlink()]
        files = list(Path(temp_dir).rglob("debug_state*.txt"))
        assert files
        assert any(path.stat().st_mode & 0o002 for path in inside), (
            "Ray closes its folders itself: less is to be done"
        )
        assert set(as_nobody(REPLACE, *map(str, files))) == {"PermissionError"}
        assert set(as_nobody(PLACE, temp_dir, *map(str, inside))) == {"PermissionError"}
        assert all(file.is_file() and not file.is_symlink() for file in files)


def test_a_head_starts_no_process_that_nobody_asks(tmp_path: Path):
    with begin_head(tmp_path, 1) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        (head,) = children(guard.pid)
        assert sorted(map(name_of, children(head))) == ["gcs_server", "raylet"]


def test_the_workers_of_a_head_hash_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with begin_head(tmp_path, 1) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        (head,) = children(guard.pid)
        (raylet,) = [pid for pid in children(head) if name_of(pid) == "raylet"]
        assert b"PYTHONHASHSEED=0" in Path(f"/proc/{raylet}/environ").read_bytes().split(b"\0")


@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_a_head_whose_part_is_killed_ends_at_once_and_leaves_nothing(part: str, tmp_path: Path):
    with begin_head(tmp_path, 1) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        (head,) = children(guard.pid)
        parts = {name_of(pid): pid for pid in children(head)}
        wait_for("the raylet's agents", lambda: len(children(parts["raylet"])) >= AGENTS)
        all_of_it = [identity for pid in below(guard.pid) if (identity := PidIdentity.of(pid))]
        os.kill(parts[part], signal.SIGKILL)
        assert guard.wait(timeout=40) == 1
        assert [identity for identity in all_of_it if identity.alive] == []
