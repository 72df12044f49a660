"""The secret of a benchmark's members: drawn by the process that starts them, in the environment of their own."""

import os

from ringleader.comm.seal import new_secret

NAME = "RINGLEADER_BENCH_SECRET"


def run_secret() -> bytes:
    """The same in a process and all that it starts."""
    return bytes.fromhex(os.environ.setdefault(NAME, new_secret().hex()))
