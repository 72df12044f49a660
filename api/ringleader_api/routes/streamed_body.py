"""An answer in pieces that lets go of what it holds, however it ends."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class StreamedBody(StreamingResponse):
    """A stream. `let_go` is called once: at its end, when the client goes away, and also where it never began."""

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
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._let_go()
