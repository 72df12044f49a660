"""Ringleader's public names, loaded on first use: importing this package loads neither torch nor ray."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOME = {
    "Client": "ringleader.client",
    "Job": "ringleader.client",
    "JobFailed": "ringleader.errors",
    "JobSpec": "ringleader.spec",
    "Session": "ringleader.train",
    "local_session": "ringleader.train",
    "weights_sha256": "ringleader.train",
}
_PARTS = ("data", "optim")
__all__ = [
    "Client",
    "Job",
    "JobFailed",
    "JobSpec",
    "Session",
    "__version__",
    "local_session",
    "weights_sha256",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _PARTS:
        return import_module(f"ringleader.{name}")
    raise AttributeError(f"module 'ringleader' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_PARTS]
