"""The imports that worker processes need between a supervisor's first call and their first step."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def import_engine() -> None:
    """Import all of them."""
    with _collector_at_rest():
        _all_but_ray()
        import ringleader.runtime.supervisor.actor
        import ringleader.runtime.worker.actor  # noqa: F401 - a handle that comes with the work brings its class


def import_all_but_ray() -> None:
    """Import all that may be loaded before a process knows its raylet and its driver, which Ray's library reads when it
    is loaded: four fifths of the time."""
    with _collector_at_rest():
        _all_but_ray()


def _all_but_ray() -> None:
    import numpy.ctypeslib  # noqa: F401 - safetensors does, when it looks whether it can write the weights
    import pyarrow.fs  # noqa: F401 - checkpoints
    import torch._dynamo  # noqa: F401 - the first optimiser of a process imports it: over a second

    # Each with its mark: a formatter that takes one for unused makes recoveries slow, and nothing fails.
    import ringleader.runtime.records.sink
    import ringleader.runtime.worker.member  # noqa: F401 - brings the engine


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Turn the garbage collector off meanwhile, which saves a quarter of the time, and exempt for good what this
    brings: some 300,000 objects, which it would walk through in the middle of a step."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()
