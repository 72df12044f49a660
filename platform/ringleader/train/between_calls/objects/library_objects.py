"""The contents of objects of libraries that are no list and no dict: buffers, views, queues, context variables,
frames of pandas.

Numbers that a program keeps in one of these go on from turn to turn like those of a list.
"""

import threading
from array import array
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from contextvars import ContextVar
from functools import partial
from io import BytesIO, StringIO
from queue import Queue
from typing import Any
from weakref import ReferenceType

MOST_READ = 1 << 15
"""Bytes, or characters, that are read from each end of longer data."""

MOST_VALUES = 1 << 14

HOLDERS = (ContextVar, threading.local)
"""Those that stay the same objects, mostly globals, while a program sets what they hold."""


def contents(value: Any) -> Any:
    """The contents of the object, as values of other kinds; None where it is none of these."""
    if type(value).__module__.partition(".")[0] == "pandas":
        return _of_frame(value)
    return next((read(value) for kinds, read in _READ if isinstance(value, kinds)), None)


def _of_frame(value: Any) -> Any:
    """The columns of a frame, or the values of a series. Large ones are not read: some are converted for it."""
    if not hasattr(value, "to_numpy") or value.size > MOST_VALUES:
        return None
    if value.ndim == 1:
        return [value.to_numpy()]
    return {name: column.to_numpy() for name, column in value.items()}


def _of_stream(stream: BytesIO | StringIO) -> Any:
    # Who reads or writes goes on from where it stands.
    return "closed" if stream.closed else (stream.tell(), _ends(stream.getvalue()))


def _ends(data: bytes | str) -> Any:
    return data if len(data) <= 2 * MOST_READ else (len(data), data[:MOST_READ], data[-MOST_READ:])


_READ: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (partial, lambda called: [*called.args, *called.keywords.items()]),
    (ContextVar, lambda variable: [variable.get(None)]),
    ((BytesIO, StringIO), _of_stream),
    ((bytearray, memoryview, array), lambda data: _ends(bytes(data))),
    (Queue, lambda queue: list(queue.queue)),
    (threading.local, vars),  # of this thread
    (ReferenceType, lambda reference: [reference()]),
    ((KeysView, ValuesView, ItemsView), list),
)
