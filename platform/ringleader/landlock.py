"""Landlock: a process gives up its right to change files and to open connections (Linux 5.13 and newer).

https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISDIR

from ringleader.lifeline import renounce_rights

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of system calls, the same on all architectures."""
ASK_VERSION, BENEATH_A_PATH = 1, 1
WRITE_FILE, REMOVE_DIR, REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
MAKE_ANY, REFER, TRUNCATE = 0b1111111 << 6, 1 << 13, 1 << 14
BIND_TCP, CONNECT_TCP = 1, 2
ABSTRACT_SOCKETS, SIGNALS = 1, 2


def confine(writable: Iterable[Path]) -> bool:
    """Confine this process, and those that it starts, to changing these files and the content of these folders; as far
    as the kernel supports it they also open no TCP connection and signal no other process. Threads that exist already
    stay free.

    Returns whether that holds; where the kernel has no Landlock nothing changes.
    """
    version = _call(CREATE_RULESET, None, 0, ASK_VERSION) if sys.platform == "linux" else -1
    if version < 1 or not renounce_rights():
        return False
    files = WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_ANY
    # The kernel refuses a set of rules with a right that it does not know.
    files |= (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    handled = struct.pack("=QQQ", files, BIND_TCP | CONNECT_TCP, ABSTRACT_SOCKETS | SIGNALS)
    known = 8 if version < 4 else 16 if version < 6 else 24  # bytes of it that this kernel knows
    ruleset = _call(CREATE_RULESET, handled[:known], known, 0)
    if ruleset < 0:
        return False
    try:
        for place in writable:
            _allow(ruleset, place, files)
        return _call(RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, place: Path, files: int) -> None:
    try:
        opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is not there: nothing is written into it
    try:
        # On a file the kernel refuses a rule with rights that only folders have.
        allowed = files if S_ISDIR(os.fstat(opened).st_mode) else files & (WRITE_FILE | TRUNCATE)
        _call(ADD_RULE, ruleset, BENEATH_A_PATH, struct.pack("=Qi", allowed, opened), 0)
    finally:
        os.close(opened)


def _call(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(number), *words))
