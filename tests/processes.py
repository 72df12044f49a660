"""Who is below a process, as the kernel has it."""

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, file.read_text().split())
    return found


def below(pid: int) -> set[int]:
    """All that it and its children have started, and have not outlived."""
    return set(children(pid)).union(*(below(child) for child in children(pid)))


def name_of(pid: int) -> str:
    """Its first 15 characters; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended and that nobody has asked for its status does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
