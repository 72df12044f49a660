"""The queue of an attempt's events, which come from any thread and are taken by the one that decides."""

import queue
import threading

from ringleader.elastic import events as ev


class EventQueue:
    """The events in the order in which they came, with marks between them for those who wait."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ev.Event | threading.Event] = queue.SimpleQueue()

    def __len__(self) -> int:
        """The number of events and marks that wait."""
        return self._queue.qsize()

    def put(self, event: ev.Event) -> None:
        self._queue.put(event)

    def put_marked(self, event: ev.Event) -> threading.Event:
        """Put an event with a mark behind it, which is set once the event has been handled."""
        handled = threading.Event()
        # In the order of the queue: when the mark is taken, the event before it has been handled.
        self._queue.put(event)
        self._queue.put(handled)
        return handled

    def next(self, timeout_s: float) -> ev.Event | None:
        """Take the next event. None where none came in time, or where it is a mark, which is set."""
        try:
            # A queue refuses a negative timeout.
            found = self._queue.get(timeout=max(0.001, timeout_s))
        except queue.Empty:
            return None
        if isinstance(found, threading.Event):
            found.set()
            return None
        return found
