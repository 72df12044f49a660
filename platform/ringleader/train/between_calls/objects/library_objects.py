"""What objects of Python's own library hold that is no list and no dict: buffers, views, queues, context variables.

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


def contents(value: Any) -> Any:
    """What the object holds, as values of other kinds; None where it is none of these."""
    return next((read(value) for kinds, read in _READ if isinstance(value, kinds)), None)


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
