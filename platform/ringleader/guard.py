"""The guard of one program, a service of the stack or a hosted job's: runs it, and leaves nothing of it behind once its
owner is gone, however that ended.

Its command line is that of `guarded`, and its standard input a pipe that only the owner holds open: the end of that is
the news that the owner is gone, even by SIGKILL. A byte that comes there is the number of a signal for the program. The
guard adopts orphans (child subreaper), so whatever the program started stays below it and is found. Its exit status is
the program's, or 128 and the signal that ended that. Uses the standard library only, to be small and quick.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NO_RECORD = "-"

_libc = ctypes.CDLL(None, use_errno=True)


def guarded(command: Sequence[str], *, grace_s: float = 0, record: Path | None = None) -> list[str]:
    """The command line of a guard that runs this command.

    Args:
        grace_s: the time from SIGTERM to SIGKILL, where the guard has to end the program.
        record: a file that names what to remove afterwards, and is removed then.
    """
    # -I -S: the guard needs the standard library only, starts faster so, and obeys no PYTHON* variable.
    return [sys.executable, "-I", "-S", __file__, str(record or NO_RECORD), str(grace_s), *command]


def main() -> int:
    record, grace_s, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    # Before there is a service: what it orphaned until then would go to the first process instead.
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    news_read, news_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(news_write, warn_on_full_buffer=False)
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: asked.append(received))
    # A handler, though an empty one: without any, SIGCHLD is ignored and writes nothing to the wakeup pipe.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # There is one thread only: preexec_fn is safe here.
    die_with_guard = partial(_die_with_guard, os.getpid())
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_guard)  # noqa: PLW1509
    status = _until_over(service.pid, news_read, lambda: bool(asked))
    if status is None:
        status = _end(service.pid, grace_s)
    service.returncode = status  # reaped here, not by Popen
    _end_descendants()
    if record != NO_RECORD:
        _clean(Path(record))
    # A signal is a negative status here, which no process can exit with.
    return status if status >= 0 else 128 - status


def _die_with_guard(guard: int) -> None:
    """Have the kernel kill the service with the guard; runs in the service before exec. `lifeline` does the same, but
    is not in the standard library."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guard:
        os._exit(1)  # the guard was killed before the kernel was asked


def _until_over(pid: int, news: int, asked: Callable[[], bool]) -> int | None:
    """Wait for the program's exit status; None when it has to be ended: that was asked for, or the owner is gone."""
    while not asked():
        status = _reap(pid)
        if status is not None:
            return status
        ready, _, _ = select.select([0, news], [], [], 5)
        if 0 in ready:
            if not (numbers := os.read(0, 4096)):
                return None
            for number in numbers:  # not reaped yet: the pid is still the program's
                os.kill(pid, number)
        if news in ready:
            os.read(news, 4096)
    return None


def _reap(service: int) -> int | None:
    """Collect every child that has ended; the service's status if it was among them."""
    status = None
    while True:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == service:
            status = os.waitstatus_to_exitcode(raw)


def _end(service: int, grace_s: float) -> int:
    os.kill(service, signal.SIGTERM)
    give_up_at = time.monotonic() + grace_s
    while time.monotonic() < give_up_at:
        status = _reap(service)
        if status is not None:
            return status
        time.sleep(0.02)
    # It is killed with its descendants; after a stop that was asked for its status is nobody's concern.
    return 0


def _end_descendants(deadline_s: float = 10) -> None:
    """Kill all processes left below this one. None are left when it has no child: an orphan becomes one, while /proc,
    read process by process, shows some below nobody for a moment."""
    give_up_at = time.monotonic() + deadline_s
    while not _childless() and time.monotonic() < give_up_at:
        for pid in _descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        # No child has the pid 0: this only collects those that have ended.
        _reap(0)
        time.sleep(0.02)


def _childless() -> bool:
    try:
        # WNOWAIT: a look that leaves the zombie for `_reap`.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _descendants(root: int) -> list[int]:
    """Pids below `root`, by the parents in /proc. Zombies too: one whose other threads have not ended yet still has its
    children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 (thousands of names, no paths needed)
        if entry.isdigit():
            try:
                # Behind the last bracket: a command's name may hold brackets itself.
                parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
            except (OSError, ValueError):
                continue
            children.setdefault(int(parent), []).append(int(entry))
    found, frontier = [], [root]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return found


def _clean(record: Path) -> None:
    """Remove the temporary folders the record names, then the record."""
    try:
        folders = json.loads(record.read_text()).get("remove", [])
    except (OSError, ValueError):
        folders = []
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    record.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
