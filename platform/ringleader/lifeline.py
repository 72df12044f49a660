"""A process that ends with its parent, and does not stand in its way."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LEAST_URGENT = 19


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process `number` when the thread that started it ends, however it does (Linux).

    A parent that is gone already sends nothing: a caller that cannot be sure checks `os.getppid()` after this. Does not
    survive an exec of a program with other rights; a child that is forked here has to ask for it again.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def stand_back(parent: int, niceness: int = LEAST_URGENT) -> None:
    """Give this process the lowest priority, have it go first where memory runs out, and end it with `parent`, as its
    forks end with it. Call it before slow imports."""
    end_with_parent()  # elsewhere than on Linux `parent` has to end it
    if os.getppid() != parent:
        os._exit(1)  # lost before it could be asked for the signal
    # The kernel clears the request in a child.
    os.register_at_fork(after_in_child=end_with_parent)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def renounce_rights() -> bool:
    """Have the kernel give this process and its children no more rights than they have (Linux). Returns whether it
    does: some things it grants to such processes only."""
    return sys.platform == "linux" and not ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
