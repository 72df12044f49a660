"""A program that ends its own process has what it printed told first."""

import os
import subprocess
import sys
import time

import pytest

from ringleader.runtime.worker import output_capture

PROGRAM = """
import os, sys, time
from ringleader.runtime.worker.output_capture import OWN, told_before_exit

def tell():
    if sys.argv[1] == "hangs":
        time.sleep(600)
    os.write(1, b"told")
    if sys.argv[1] == "breaks":
        sys.stderr = open(os.devnull, "w")
        raise OSError("nobody hears")

with told_before_exit(tell, patience_s=0.2 if sys.argv[1] == "hangs" else 60.0):
    if sys.argv[1] == "fork":
        child = os.fork()
        if child == 0:
            os._exit(4)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, str(code).encode())
    elif sys.argv[1] == "own":
        exec(compile("os._exit(3)", OWN + "/x.py", "exec"))
    else:
        os._exit(3)
if sys.argv[1] == "fork":
    os._exit(3)
"""


@pytest.mark.parametrize(
    ("case", "told"),
    [("plain", "told"), ("breaks", "told"), ("hangs", ""), ("fork", "4"), ("own", "")],
)
def test_the_programs_own_exit_is_told_and_always_comes(case: str, told: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, case]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (3, told), ended.stderr


def test_behind_the_block_an_exit_is_what_it_was() -> None:
    before = os._exit
    with output_capture.told_before_exit(lambda: time.sleep(0)):
        assert os._exit is not before
    assert os._exit is before
