"""HTTP/1.1 messages as h11 reads them, but for bodies in tiny chunks, which cost time and bring next to nothing."""

import h11

FREE = 100
"""So many chunks of a body may have any size."""
LEAST_BYTES = 256
"""The mean size of all others. h11 takes some tens of microseconds for each chunk, whatever is in it, on the loop that
answers everybody; clients and proxies send kilobytes in one."""


class SmallChunks(h11.RemoteProtocolError):
    """A body comes in too many chunks for its size."""


class Messages(h11.Connection):
    """The server's side of a connection."""

    def __init__(self, most_head_bytes: int) -> None:
        super().__init__(h11.SERVER, most_head_bytes)
        self._chunks = 0
        self._body_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event. Raises SmallChunks, besides what h11 raises."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._body_bytes += len(event.data)
            if self._chunks > FREE + self._body_bytes // LEAST_BYTES:
                raise SmallChunks(
                    f"The body comes in chunks of less than {LEAST_BYTES} bytes: send larger ones, or a Content-Length."
                )
        return event
