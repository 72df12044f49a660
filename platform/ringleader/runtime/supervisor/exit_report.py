"""The output of a program that ends its own process: reported before the process is gone."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import ringleader

PATIENCE_S = 2.0
"""The time after which the process ends, whether or not it was heard."""
OWN = str(Path(ringleader.__file__).parent)


@contextmanager
def told_before_exit(tell: Callable[[], None], patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Have the program's `os._exit` call `tell` first in this block. The platform's own does not, nor one in a child
    that was forked here: what they end has nothing to tell."""
    end, process = os._exit, os.getpid()

    def told(status: int) -> NoReturn:
        caller = sys._getframe(1).f_code.co_filename
        if os.getpid() == process and not caller.startswith(OWN):
            # On a thread: the one that ends may hold what telling takes, in a signal handler for example.
            last = threading.Thread(target=tell, name="exit-report", daemon=True)
            last.start()
            last.join(patience_s)
        end(status)

    os._exit = told
    try:
        yield
    finally:
        os._exit = end
