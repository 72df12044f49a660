"""A streamed response that releases its resources, however it ends."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping

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
