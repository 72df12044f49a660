"""A process in which a program does nothing to the world: what it would do to files and others is refused, by Python
and by the kernel."""

import multiprocessing
import os
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import processes
from safetensors.torch import save_file

from ringleader.landlock import confine
from ringleader.train.program_check import sandbox
from ringleader.train.program_check.sandbox import ActionRefused, Sandbox

Act = Callable[[Path], object]
REFUSED: dict[str, Act] = {
    "descriptor": lambda place: os.open(place / "old", os.O_WRONLY | os.O_TRUNC),
    "bytes": lambda place: os.open(os.fsencode(place / "new"), os.O_WRONLY | os.O_CREAT),
    "remove": lambda place: (place / "old").unlink(),
    "rename": lambda place: (place / "old").rename("taken"),
    "replace": lambda place: Path("own").replace(place / "old"),
    "mkdir": lambda place: (place / "new").mkdir(),
    "rmtree": shutil.rmtree,
    "rmtree above": lambda place: shutil.rmtree(".."),
    "others' link": lambda place: (place / "to own").unlink(),
    "truncate": lambda place: os.truncate(place / "old", 0),
    "symlink": lambda place: (place / "new").symlink_to("own"),
    "chmod": lambda place: (place / "old").chmod(0),
    "start": lambda place: subprocess.Popen(["rm", place / "old"]),
    "shell": lambda place: os.system(f"rm {place / 'old'}"),
    "connect": lambda place: socket.create_connection(("127.0.0.1", 9)),
    "send": lambda place: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9)),
    "database": lambda place: sqlite3.connect(place / "old"),
    "caught": lambda place: caught(place / "old"),
    "shared memory": lambda place: (Path("/dev/shm") / place.parent.name).touch(),
    "no folder": lambda place: (place / "not" / "new").write_text("more"),
}
ALLOWED: dict[str, Act] = {
    "read": lambda place: (place / "old").read_text(),
    "own file": lambda place: Path("own").write_text("more"),
    "own link": lambda place: Path("link").unlink(),
    "own folder": lambda place: shutil.rmtree("below"),
    "nowhere": lambda place: Path("/dev/null").write_text("words"),
    "a folder that is there": lambda place: place.mkdir(exist_ok=True),
    "a file that is not": lambda place: (place / "new").unlink(missing_ok=True),
    "database in memory": lambda place: sqlite3.connect(":memory:"),
    "memory": lambda place: torch.save({}, BytesIO()),
}


def goes_on(file: Path) -> str:
    with file.open("a") as opened:
        opened.write(", and more")
    return file.read_text()


def takes_its_place(file: Path) -> list[str]:
    new = file.with_name("new")
    new.write_text("whole")
    new.replace(file)
    return [file.read_text(), str(new.exists())]


def goes_again(file: Path) -> str:
    file.write_text("for a while")
    file.unlink()
    return str(file.exists())


def torch_again(file: Path) -> object:
    torch.save({"a": 1}, file)
    return torch.load(file)


def numpy_again(file: Path) -> object:
    np.save(file, np.arange(3))
    return np.load(file).tolist()


COPIES: dict[str, tuple[Act, object]] = {
    "new": (lambda place: goes_on(place / "new"), ", and more"),
    "old": (lambda place: goes_on(place / "old"), "as it was, and more"),
    "again": (
        lambda place: [goes_on(place / "old"), goes_on(place / "old")][1],
        "as it was" + 2 * ", and more",
    ),
    "through a link": (
        lambda place: [goes_on(Path("link")), (place / "old").read_text()][1],
        "as it was, and more",
    ),
    "renamed": (lambda place: takes_its_place(place / "old"), ["whole", "False"]),
    "removed": (lambda place: goes_again(place / "new"), "False"),
    "torch": (lambda place: torch_again(place / "old"), {"a": 1}),
    "numpy": (lambda place: numpy_again(place / "new.npy"), [0, 1, 2]),
}
"""What a program writes to files and reads there again."""


def caught(file: Path) -> None:
    with suppress(Exception):
        file.unlink()


def attempt(name: str, folder: Path, outside: Path, *, confined: bool) -> None:
    """In a process of its own, whose folder is below `folder`."""
    if not confined:
        sandbox.confine = lambda _: False
    os.chdir(folder)
    guard = Sandbox(folder)
    with suppress(ActionRefused):
        act, result = COPIES.get(name) or ((REFUSED | ALLOWED)[name], None)
        assert act(outside) == result or name not in COPIES
    (folder / "why").write_text(guard.why)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    outside.mkdir()
    (outside / "old").write_text("as it was")
    (folder / "below").mkdir(parents=True)
    (folder / "own").write_text("own")
    (folder / "link").symlink_to(outside / "old")
    (outside / "to own").symlink_to(folder / "own")
    return folder, outside


def why(name: str, places: tuple[Path, Path], *, confined: bool) -> str:
    process = processes().Process(target=attempt, args=(name, *places), kwargs={"confined": confined})
    process.start()
    process.join(60)
    assert process.exitcode == 0
    folder, outside = places
    assert sorted(file.name for file in outside.iterdir()) == ["old", "to own"]
    assert (outside / "old").read_text() == "as it was"
    assert (outside / "old").stat().st_mode & 0o777 == 0o644
    return (folder / "why").read_text()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("confined", [True, False])
def test_what_would_change_something_is_refused_and_its_line_is_named(
    name: str, places: tuple[Path, Path], confined: bool
) -> None:
    assert why(name, places, confined=confined).startswith("test_harmless.py:")


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("confined", [True, False])
def test_what_it_writes_to_files_goes_into_copies(
    name: str, places: tuple[Path, Path], confined: bool
) -> None:
    assert why(name, places, confined=confined) == ""


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("confined", [True, False])
def test_what_changes_nothing_is_allowed(name: str, places: tuple[Path, Path], confined: bool) -> None:
    assert why(name, places, confined=confined) == ""


def test_the_kernel_refuses_what_python_does_not_see(places: tuple[Path, Path]) -> None:
    folder, outside = places
    process = processes().Process(target=save_past_python, args=places)
    process.start()
    process.join(60)
    told = (folder / "told").read_text()
    if told == "no Landlock":
        pytest.skip("this kernel has no Landlock")
    assert told == "own saved; other refused"
    assert sorted(file.name for file in outside.iterdir()) == ["old", "to own"]


def test_shared_memory_is_closed_and_devices_that_keep_nothing_are_open(tmp_path: Path) -> None:
    process = processes().Process(target=lock_and_drop, args=(tmp_path,))
    process.start()
    process.join(60)
    told = (tmp_path / "told").read_text()
    if told == "no Landlock":
        pytest.skip("this kernel has no Landlock")
    assert told == "PermissionError; 5 written"


def lock_and_drop(folder: Path) -> None:
    guard = Sandbox(folder)
    told = "no Landlock"
    if confine([folder, *sandbox.DEVICES]):
        try:
            multiprocessing.get_context("spawn").Lock()  # a semaphore is a file there
        except OSError as error:
            told = f"{type(error).__name__}; {Path('/dev/null').write_text('words')} written"
    (folder / "told").write_text(told + guard.why)


def save_past_python(folder: Path, outside: Path) -> None:
    told = "no Landlock"
    if confine([folder]):
        save_file({"a": torch.zeros(1)}, folder / "new")
        told = "own saved; "
        try:
            save_file({"a": torch.zeros(1)}, outside / "new")
        except Exception:
            told += "other refused"
    (folder / "told").write_text(told)
