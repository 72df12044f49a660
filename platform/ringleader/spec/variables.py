"""Variables of a job file's `env` that come too late: a worker's process has read them before it knows its job."""

from collections.abc import Iterator, Mapping
from typing import Any

THREADS = frozenset({"MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
_LIBRARIES = "set it where Ray is started on the nodes, or load the library in the program with ctypes.CDLL"
TOO_LATE = {
    "LD_LIBRARY_PATH": _LIBRARIES,
    "LD_PRELOAD": _LIBRARIES,
    "PYTHONHASHSEED": "sort values that the program takes from a set",
    "PYTHONOPTIMIZE": "switch checks off with a key in params",
    "PYTHONWARNINGS": "call warnings.filterwarnings in the program",
}
"""The cure by variable: what to do instead of setting it."""


def without_effect(env: Mapping[str, str], threads: int) -> Iterator[dict[str, Any]]:
    """Findings on variables that would have no effect. For new jobs only: older ones are stored with them.

    Args:
        threads: the number that compute in a worker.
    """
    for name, value in env.items():
        if name in TOO_LATE:
            yield _finding(
                name,
                value,
                "a worker's process starts before it gets the job's variables",
                TOO_LATE[name],
            )
        # Set to the number that there is anyway, it does no harm.
        elif name in THREADS and value.strip() != str(threads):
            cpus = value.strip() if value.strip().isdecimal() else "as many"
            yield _finding(
                name,
                value,
                f"workers.cpus sets the number of threads of a worker, {threads} here",
                f"set workers.cpus: {cpus}",
            )


def _finding(name: str, value: str, why: str, cure: str) -> dict[str, Any]:
    allowed = f"leave it out and {cure}"
    message = f"{name} has no effect here (got {value!r}): {why}; allowed: {allowed}"
    return {"pointer": f"/env/{name}", "value": value, "allowed": allowed, "message": message}
