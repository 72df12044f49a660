"""Processes of tests: forked by a server that has loaded what they would import, which is most of a short play."""

import multiprocessing as mp
import os
import sys
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

LOADED = ["cast", "pytest", "ringleader_jobs.digits", "torch._dynamo", "frozen"]
"""Besides `cast` what test modules import, since a forked process imports the module of its function; the first
optimizer of a process imports the last, which takes seconds."""


@cache
def processes() -> ForkServerContext:
    """Their server runs once this returns."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    # The server does not take over this process's `sys.path`, and passes over what it cannot import.
    with_tests = os.pathsep.join(filter(None, sys.path))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = with_tests
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context
