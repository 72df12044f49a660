"""Keeping freed memory: taken by glibc, refused without harm elsewhere."""

import platform
import subprocess
import sys


def test_glibc_takes_the_setting():
    code = "from ringleader.comm.memory import keep_freed_memory; print(keep_freed_memory())"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == str(platform.libc_ver()[0] == "glibc")
