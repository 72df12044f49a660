"""A process that ends with its parent."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process `number` when the thread that started it ends, however it does (Linux).

    A parent that is gone already sends nothing: whoever cannot be sure looks at `os.getppid()` after this. Does not
    outlast an exec of a program with other rights; a child that is forked here has to ask for it again.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
