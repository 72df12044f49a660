"""A process that holds a segment is found by what it has open or mapped, and only among those that nobody owns."""

import os
import subprocess
import sys

import pytest

from ringleader.bench.orphans import orphans
from ringleader.comm.segments import NAME

OPEN = f"import os; held = os.memfd_create({NAME!r})"
MAPPED = f"{OPEN}; import mmap; os.ftruncate(held, 4096); memory = mmap.mmap(held, 4096); os.close(held)"
UNMAPPED = f"{MAPPED}; memory.close()"
OTHER = "import os; held = os.memfd_create('other')"


@pytest.mark.parametrize(
    ("does", "is_found"), [(OPEN, True), (MAPPED, True), (UNMAPPED, False), (OTHER, False)]
)
def test_an_orphan_is_a_process_without_an_owner_that_holds_a_segment(does: str, is_found: bool) -> None:
    code = f"{does}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert (child.pid in orphans(parent=os.getpid())) == is_found
        assert child.pid not in orphans(parent=child.pid)
        child.communicate("\n")
