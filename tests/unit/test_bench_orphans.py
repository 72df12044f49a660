"""What a run leaves is found, each kind of it: by the home that its processes were started with, whoever is their
parent."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_for

from ringleader.bench.processes import orphans
from ringleader.bench.processes.orphans import Machine, of_run
from ringleader.comm.segments import NAME

OPEN = f"import os; held = os.memfd_create({NAME!r})"
MAPPED = f"{OPEN}; import mmap; os.ftruncate(held, 4096); memory = mmap.mmap(held, 4096); os.close(held)"
UNMAPPED = f"{MAPPED}; memory.close()"
OTHER = "import os; held = os.memfd_create('other')"
HOLDERS = "processes that hold shared memory"


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where named segments lie: other tests, which run at the same time, put theirs into the machine's own place."""
    monkeypatch.setattr(orphans, "SHARED", tmp_path / "shm")
    orphans.SHARED.mkdir()
    return orphans.SHARED


@contextmanager
def started(code: str, home: Path, *arguments: str) -> Iterator[int]:
    """A process of that run that has done what the code says, and waits."""
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; print(flush=True); input()", *arguments],
        env=os.environ | {"RINGLEADER_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.communicate("\n")


@pytest.mark.parametrize(
    ("does", "is_found"), [(OPEN, True), (MAPPED, True), (UNMAPPED, False), (OTHER, False)]
)
def test_a_process_of_the_run_that_holds_a_segment_is_found_though_it_has_a_parent(
    does: str, is_found: bool, tmp_path: Path
) -> None:
    machine, others = Machine.now(tmp_path), Machine.now(tmp_path / "other")
    with started(does, tmp_path) as pid:
        assert machine.left() == ({HOLDERS: [pid]} if is_found else {})
        assert others.left() == {}
        assert of_run(tmp_path) == {pid}
    assert of_run(tmp_path) == set()


def test_an_orphan_is_found_though_a_guard_has_adopted_it(tmp_path: Path) -> None:
    """The guard stands here for that of a service: who adopts orphans, under the name of its file."""
    adopt = "import ctypes, subprocess, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)"
    leave = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0)"
    machine = Machine.now(tmp_path)
    with started(
        f"{adopt}; subprocess.run([sys.executable, '-c', {leave!r}])", tmp_path, "/ringleader/guard.py"
    ):
        # While a process becomes another program, its environment is empty.
        (orphan,) = wait_for("the orphan", lambda: machine.left().get("orphans"))
        assert orphan in of_run(tmp_path)
        assert Machine.now(tmp_path).left() == {}, "it was there before"
    wait_for("the orphan's end", lambda: not of_run(tmp_path))


def test_a_zygote_is_no_orphan_of_a_job(tmp_path: Path) -> None:
    """Who starts it ends at once, and it serves until its raylet ends."""
    adopt = "import ctypes, subprocess, sys; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)"
    (tmp_path / "zygote.py").write_text("input()")
    leave = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '{tmp_path}/zygote.py', '7'], stdin=0)"
    )
    machine = Machine.now(tmp_path)
    with started(
        f"{adopt}; subprocess.run([sys.executable, '-c', {leave!r}])", tmp_path, "/ringleader/guard.py"
    ) as guard:
        wait_for("the zygote", lambda: len(of_run(tmp_path) - {guard}) == 1)
        assert machine.left() == {}
    wait_for("its end", lambda: not of_run(tmp_path))


def test_a_named_segment_is_found_unless_it_is_another_runs(shared: Path, tmp_path: Path) -> None:
    machine = Machine.now(tmp_path)
    holds = f"held = open({str(shared / 'segment')!r}, 'w')"
    with started(holds, tmp_path / "other"):
        assert machine.left() == {}
    assert machine.left() == {"segments": ["segment"]}
    with started(holds, tmp_path):
        assert machine.left() == {"segments": ["segment"]}
