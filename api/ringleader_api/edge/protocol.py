"""What cannot be read as HTTP reaches no layer of ours: its refusal is a problem all the same."""

import secrets
import sys
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ringleader_api.problems import problem


class Http(H11Protocol):
    """uvicorn's HTTP/1.1; `send_400_response` is called where h11 has raised."""

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        number = secrets.token_hex(8)
        answer = problem(status, msg, request_id=number)
        headers = [*answer.raw_headers, (b"x-request-id", number.encode()), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
