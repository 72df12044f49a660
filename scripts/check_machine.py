"""Is this machine one that the set-up can work on? Written so that any Python, however old, can say so."""

from __future__ import print_function

import platform
import sys

OLDEST, NEWEST = (3, 11), (3, 13)
GLIBC = (2, 28)


def complaints():
    """One sentence for each thing that is wrong."""
    found = []
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        found.append(
            "This is Python %d.%d (%s); Ringleader needs 3.11, 3.12 or 3.13. "
            "Name one: make PYTHON=python3.12 setup" % (version[0], version[1], sys.executable)
        )
    try:
        import ensurepip
        import venv

        del ensurepip, venv
    except ImportError:
        found.append(
            "This Python (%s) has no venv module. Install it (Debian, Ubuntu: apt install python3-venv) "
            "or name another Python: make PYTHON=... setup" % sys.executable
        )
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        found.append(
            "This is %s on %s; Ringleader runs on x86-64 Linux: its shared memory relies on that machine's "
            "memory order." % (platform.system(), platform.machine())
        )
    elif not _glibc_at_least(GLIBC):
        found.append(
            "This Linux has no glibc %d.%d or newer, which the wheels of torch and Ray need." % GLIBC
        )
    return found


def _glibc_at_least(oldest):
    name, version = platform.libc_ver()
    if name != "glibc":
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= oldest


if __name__ == "__main__":
    wrong = complaints()
    for sentence in wrong:
        print("set-up: " + sentence, file=sys.stderr)
    sys.exit(1 if wrong else 0)
