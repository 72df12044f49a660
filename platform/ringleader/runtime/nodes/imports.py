"""The imports that worker processes need between a supervisor's first call and their first step."""

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module

# By name: a linter takes an import that nobody uses for a mistake, and a forgotten one makes recoveries slow without
# a failure.
ALL_BUT_RAY = (
    "numpy.ctypeslib",  # safetensors does, when it looks whether it can write the weights
    "pyarrow.fs",  # checkpoints
    "torch._dynamo",  # the first optimizer of a process imports it: over a second
    "ringleader.runtime.records.record_log",  # the supervisor's
    "ringleader.runtime.worker.member",  # brings the engine
)
BY_RAY = (
    "ringleader.runtime.supervisor.actor",
    "ringleader.runtime.worker.actor",  # a handle that comes with the work brings its class
)


def import_engine() -> None:
    """Import all of it."""
    _import((*ALL_BUT_RAY, *BY_RAY))


def import_all_but_ray() -> None:
    """Import what may be there before a process knows its raylet and its driver, which Ray's library reads when it is
    loaded: four fifths of the time."""
    _import(ALL_BUT_RAY)


def _import(modules: Iterable[str]) -> None:
    with _collector_at_rest():
        for module in modules:
            import_module(module)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Turn the garbage collector off meanwhile, and exempt for good what this brings."""
    # It saves a quarter of the time.
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()
