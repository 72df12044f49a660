"""The start of a loading process: it ends with the worker that forked it, and holds none of that one's connections."""

import os
import stat
from multiprocessing import get_start_method, parent_process
from pathlib import Path

from ringleader.lifeline import end_with_parent

_STANDARD = 3


def detach(_number: int) -> None:
    """Detach from the worker: a DataLoader's `worker_init_fn`.

    A worker's death shows at its peers as the end of its connections, so no other process may keep these open. The
    loader itself communicates through pipes; sockets that it opens later are its own.
    """
    end_with_parent()  # elsewhere than on Linux torch's own watchdog takes seconds
    worker = parent_process()
    # Who was forked by a server of the worker's has that one for a parent, which ends with the worker.
    forked_here = get_start_method() != "forkserver"
    if forked_here and worker is not None and os.getppid() != worker.pid:
        # Lost before it could be asked for the signal, which torch's watchdog would not see either.
        os._exit(1)
    void = os.open(os.devnull, os.O_RDWR)
    for descriptor in sockets():
        # Whoever still knows the number may close it: it must not be given to something new.
        os.dup2(void, descriptor, inheritable=False)
    os.close(void)


def sockets() -> list[int]:
    """Open descriptors of this process that are sockets, but for standard input, output and error."""
    numbers = [int(path.name) for path in Path("/dev/fd").iterdir()]
    return [n for n in numbers if n >= _STANDARD and _is_socket(n)]


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:  # the listing's own
        return False
