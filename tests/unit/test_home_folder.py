"""A home folder belongs to its owner alone: nobody else puts files into it, or another folder in its place."""

import os
import pwd
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from accounts import NOBODY, as_nobody, needs_root, open_folder
from control_plane import stage

from ringleader.cli.stack.home import Home
from ringleader.home_folder import HomeExposed, HomeUnusable, home_warning, make_home
from ringleader.ray_token import token_file

UNKNOWN = NO_GROUP = 54321  # of which this machine knows nothing, as a container of its volume's
BEGINNINGS: dict[str, Callable[[Path], object]] = {
    "api": stage,
    "up": lambda home: Home(home).prepare(),
    "head": lambda home: token_file(home, None),
}


def made(folder: Path, mode: int, owner: int = -1, group: int = -1) -> Path:
    folder.mkdir(exist_ok=True)
    os.chown(folder, owner, group)
    folder.chmod(mode)
    return folder


def run_the_cure(refused: HomeExposed) -> None:
    """Run the command that the hint of a refusal names."""
    command = refused.hint.removeprefix("Run ").partition(";")[0]
    subprocess.run(command.split(), check=True, timeout=30)


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize("mode", [0o777, 0o733, 0o1777])
def test_nothing_begins_in_a_folder_that_everybody_can_write_to(
    begin: Callable[[Path], object], mode: int, tmp_path: Path
) -> None:
    home = made(tmp_path / "home", mode)
    with pytest.raises(HomeExposed, match=f"{home} can be changed by every account") as refused:
        begin(home)
    assert not {"token", "ray_token", "port", "run"} & {path.name for path in home.iterdir()}
    run_the_cure(refused.value)
    begin(home)


def test_a_new_home_below_a_sticky_folder_is_its_owners_alone(tmp_path: Path) -> None:
    home = made(tmp_path / "shared", 0o1777) / "deep" / "home"
    make_home(home)
    assert home.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("linked", [False, True])
def test_a_home_that_others_can_move_away_is_refused(linked: bool, tmp_path: Path) -> None:
    above = made(tmp_path / "shared", 0o777)
    (tmp_path / "link").symlink_to(above)
    home = tmp_path / ("link" if linked else "shared") / "home"
    with pytest.raises(HomeExposed, match=f"{above} can be changed by every account"):
        make_home(home)


def test_a_link_to_the_home_in_a_folder_of_everybodys_is_refused(tmp_path: Path) -> None:
    """What it points to is closed, but another link can take its place."""
    behind = made(tmp_path / "behind", 0o700)
    open_to_all = made(tmp_path / "open", 0o777)
    (open_to_all / "inner").symlink_to(behind)
    (tmp_path / "outer").symlink_to(open_to_all / "inner")
    with pytest.raises(HomeExposed, match=f"{open_to_all} can be changed"):
        make_home(tmp_path / "outer" / "home")


@pytest.mark.parametrize("name", ["file", "file/home", "loop", "nowhere/home"])
def test_what_cannot_be_a_folder_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "nowhere").symlink_to("/proc/nowhere")
    with pytest.raises(HomeUnusable, match=rf"{tmp_path / name} cannot be made \("):
        make_home(tmp_path / name)


@needs_root
def test_a_home_that_root_has_made_tells_another_account_whose_it_is() -> None:
    """As after one `sudo ringleader up`."""
    code = f"""
import os, pathlib, sys
from ringleader.home_folder import HomeUnusable, make_home  # before: nobody may not look where it lies
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
try:
    make_home(pathlib.Path(sys.argv[1]))
except HomeUnusable as error:
    print(error)
"""
    with open_folder() as folder:
        home = made(folder / "home", 0o700)
        command = [sys.executable, "-c", code, str(home)]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert f"{home} belongs to the account root, and this process may not read and write it" in said


@needs_root
@pytest.mark.parametrize("place", ["home", "above"])
def test_a_group_with_another_account_in_it_is_named(place: str, tmp_path: Path) -> None:
    other = next(entry for entry in pwd.getpwall() if entry.pw_uid and entry.pw_gid)
    above = made(tmp_path / "above", 0o755)
    home = made(above / "home", 0o700)
    exposed = made(home if place == "home" else above, 0o2775, group=other.pw_gid)
    with pytest.raises(
        HomeExposed, match=rf"{exposed} can be changed by the group .*\b{other.pw_name}\b"
    ) as refused:
        make_home(home)
    run_the_cure(refused.value)
    make_home(home)


@needs_root
def test_a_volume_with_a_group_of_its_own_is_used_with_a_warning(tmp_path: Path) -> None:
    """As with `fsGroup` of Kubernetes: root's folder, in which the group of the pod's account may write."""
    home = made(tmp_path / "volume", 0o2775, group=NO_GROUP)
    stage(home)
    assert f"the group {NO_GROUP} may write to {home}" in home_warning(home)
    assert not home_warning(made(tmp_path / "private", 0o770))


@needs_root
@pytest.mark.parametrize("place", ["above", "above/home", "above/home/token", "above/link"])
def test_what_belongs_to_another_account_is_no_home(place: str, tmp_path: Path) -> None:
    home = made(made(tmp_path / "above", 0o755) / "home", 0o700)
    (home / "token").write_text("of a stranger")
    (tmp_path / "above" / "link").symlink_to(home)
    os.chown(tmp_path / place, NOBODY, NOBODY, follow_symlinks=False)
    name = home.with_name("link") if place.endswith("link") else home
    with pytest.raises(HomeExposed, match=f"{tmp_path / place} .* the account nobody") as refused:
        make_home(name)
    if place == "above":  # it may be that account's own home
        assert refused.value.hint == "Set RINGLEADER_HOME to a folder to which only you can write."
        return
    run_the_cure(refused.value)
    make_home(name)


@needs_root
@pytest.mark.parametrize("place", ["above", "above/home", "above/home/token"])
def test_a_home_of_an_account_that_is_unknown_here_is_used_with_a_warning(place: str, tmp_path: Path) -> None:
    """As a host's folder in a container that root has started: its owner has a number there, and no name."""
    home = made(made(tmp_path / "above", 0o755) / "home", 0o700)
    (home / "token").touch()
    assert not home_warning(home)
    os.chown(tmp_path / place, UNKNOWN, NO_GROUP)
    make_home(home)
    of_a_file = place.endswith("token")
    told = "" if of_a_file else f"the account {UNKNOWN}, unknown here, owns {tmp_path / place}: what runs as"
    assert home_warning(home).startswith(told)
    assert bool(home_warning(home)) is not of_a_file


def squashed(home: Path, account: int) -> str:
    """What `make_home` and `home_warning` say in a process whose new files belong to that account, and to no other:
    Linux lets root have what a file server does to all, for calls on files alone."""
    code = f"""
import ctypes, encodings.ascii, pathlib, sys  # before: that account may not look where it lies
from ringleader.home_folder import HomeExposed, HomeUnusable, home_warning, make_home
ctypes.CDLL(None).setfsuid({account})
try:
    make_home(home := pathlib.Path(sys.argv[1]))
    (home / "token").write_text("made here")
    make_home(home)
    print("taken:", home_warning(home))
except (HomeExposed, HomeUnusable) as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(home)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@needs_root
@pytest.mark.parametrize("above", [0, NOBODY], ids=["below root's", "below that account's"])
def test_a_home_of_a_server_that_squashes_owners_is_used_with_a_warning(above: int) -> None:
    """As with `root_squash` and `all_squash` of NFS: what this process makes there belongs to nobody."""
    with open_folder() as folder:
        home = made(made(folder / "above", 0o755, above) / "home", 0o700, NOBODY)
        said = squashed(home, NOBODY)
        assert said.startswith(
            f"taken: the server of {home} makes the account nobody the owner of what is made"
        ), said
        assert [path.name for path in home.iterdir()] == ["token"]
        with pytest.raises(HomeExposed, match="the account nobody"):
            make_home(home)  # its own files are its own here


@needs_root
@pytest.mark.parametrize("place", ["above", "above/home", "above/home/token"])
def test_what_a_third_account_owns_where_owners_are_squashed_is_refused(place: str) -> None:
    third = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, NOBODY))
    with open_folder() as folder:
        home = made(made(folder / "above", 0o755, NOBODY) / "home", 0o700, NOBODY)
        (home / "token").write_text("of a stranger")
        os.chown(home / "token", NOBODY, -1)
        os.chown(folder / place, third.pw_uid, -1)
        if place == "above/home":
            home.chmod(0o777)
        said = squashed(home, NOBODY)
        assert f"{folder / place} " in said
        assert f"the account {third.pw_name}" in said
        os.chown(folder / place, NOBODY, -1)
        home.chmod(0o777)
        assert f"{home} can be changed by every account" in squashed(home, NOBODY), "its rights still count"


@needs_root
@pytest.mark.parametrize(("tag", "who"), [(0x02, "the account nobody"), (0x08, "the group")])
def test_an_access_list_that_lets_others_write_is_seen(tag: int, who: str, tmp_path: Path) -> None:
    home = made(tmp_path / "home", 0o700)
    other = next(entry for entry in pwd.getpwall() if entry.pw_uid and entry.pw_gid)
    number = NOBODY if tag == 0x02 else other.pw_gid
    none = 0xFFFFFFFF
    entries = [(0x01, 7, none), (0x04, 0, none), (0x10, 7, none), (0x20, 0, none)]
    packed = b"".join(struct.pack("<HHI", *entry) for entry in sorted([*entries, (tag, 7, number)]))
    try:
        os.setxattr(home, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    except OSError:
        pytest.skip("this file system has no access lists")
    with pytest.raises(HomeExposed, match=f"{home} can be changed by {who}"):
        make_home(home)


@needs_root
@pytest.mark.parametrize("place", ["home", "above"])
def test_a_stranger_cannot_change_a_home_that_is_taken(place: str) -> None:
    """Where a stranger gets in, the home is refused; once the cure has run, they get in no more."""
    with open_folder() as folder:
        above = made(folder / "above", 0o755)
        home = made(above / "home", 0o755)
        made(home if place == "home" else above, 0o777)
        deed = f"""
print(tried(os.rename, "{above}/home", "{above}/away"), tried(os.mkdir, "{above}/home/run"))
if os.path.isdir("{above}/away"): os.rename("{above}/away", "{above}/home")
if os.path.isdir("{above}/home/run"): os.rmdir("{above}/home/run")
"""
        assert "done" in as_nobody(deed)
        with pytest.raises(HomeExposed) as refused:
            make_home(home)
        run_the_cure(refused.value)
        make_home(home)
        assert as_nobody(deed) == ["PermissionError", "PermissionError"]
