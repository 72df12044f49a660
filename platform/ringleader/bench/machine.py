"""The machine a figure was measured on, in words that name no host, user or path."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "ray")


def describe() -> str:
    """For example: 2 cores of an AMD EPYC 7B13, 8 GB, Linux x86_64, Python 3.11, torch 2.13.0, ray 2.60.0."""
    parts = [
        f"{_cores()} cores of {_cpu()}",
        f"{_memory_gb()} GB",
        f"{platform.system()} {platform.machine()}",
    ]
    parts.append("Python " + ".".join(platform.python_version_tuple()[:2]))
    parts += [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    return ", ".join(parts)


def _cores() -> int:
    # Not os.cpu_count(): a container or taskset may leave this process fewer cores than the machine has.
    return len(os.sched_getaffinity(0))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "an unnamed CPU"
    # ARM kernels list no model name.
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "an unnamed CPU"


def _memory_gb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
