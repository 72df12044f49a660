"""Streamed responses: one that releases its resources, however it ends, and pieces that are made in turn."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from anyio import Semaphore, to_thread
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class StreamedBody(StreamingResponse):
    """A streamed response. `let_go` is called once: at its end, when the client goes away, and also where it never
    began."""

    def __init__(
        self,
        content: Iterator[bytes] | AsyncIterator[bytes],
        let_go: Callable[[], None],
        *,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._let_go = let_go

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Around the call, not in the generator: one that was never begun runs no `finally`.
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._let_go()


async def in_turn(pieces: Iterator[bytes], turn: Semaphore) -> AsyncIterator[bytes]:
    """The pieces, each made on a thread while `turn` is held: however many ask for such a stream, so many of them
    compute at a time, and take a thread."""
    while True:
        async with turn:
            piece = await to_thread.run_sync(next, pieces, None)
        if piece is None:
            return
        yield piece
