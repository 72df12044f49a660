"""The secret of a benchmark's members: drawn by the process that starts them, in the environment of their own."""

import os

from ringleader.comm.seal import new_secret

NAME = "RINGLEADER_BENCH_SECRET"


def run_secret() -> bytes:
    """The run's secret, the same in a process and in all that it starts."""
    # Not an argument: every account of the machine can read those.
    return bytes.fromhex(os.environ.setdefault(NAME, new_secret().hex()))
