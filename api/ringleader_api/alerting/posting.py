"""Posts of alerts over HTTP: to an address that was looked up and checked, within a deadline, with nothing followed.

The name is looked up here, and the connection is made to the address that was checked: a name that leads elsewhere a
moment later changes nothing. TLS still asks for a certificate of the name.
"""

import ssl
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import httpx
from anyio import fail_after, to_thread

from ringleader.errors import RingleaderError
from ringleader.spec.alerts import address_refused
from ringleader_api.alerting.addresses import Address, Allowed, parsed
from ringleader_api.alerting.lookup import LOOKUP_S, Lookup, look_up

DEADLINE_S = 10.0
MOST_ADDRESSES = 3
"""The addresses of one name that are tried."""


class NotDelivered(RingleaderError):
    """A receiver has not taken an alert. `final`: a further try would fare no better. `late`: it has not answered in
    time."""

    code = "alert_not_delivered"

    def __init__(self, message: str, *, final: bool = False, late: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.late = late


class Poster:
    """Posts to checked addresses."""

    def __init__(
        self, allowed: Allowed, *, deadline_s: float = DEADLINE_S, look_up: Lookup = look_up
    ) -> None:
        self._allowed = allowed
        self._deadline_s = deadline_s
        self._look_up = look_up
        # Made once: reading the certificates takes tens of milliseconds.
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, address: str, headers: Mapping[str, str], body: bytes, *, called: str | None = None
    ) -> None:
        """Post once. `called`: how errors call the host of an address that is a secret.

        Raises:
            NotDelivered: the address is refused, or its host did not answer 2xx in time. No answer's body is read.
        """
        if why := address_refused(address):
            raise NotDelivered(f"{why}.", final=True)
        try:
            with fail_after(self._deadline_s):
                url = httpx.URL(address)
                found = await self.addresses(url, called or f"the host {url.raw_host.decode('ascii')}")
                status = await self._at_one_of(found, url, headers, body)
        except TimeoutError:
            raise NotDelivered(f"no answer within {self._deadline_s:g} s.", late=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
            # Its words may name the host.
            words = "" if called else str(error)
            raise NotDelivered(f"{type(error).__name__}: {words or 'the connection broke'}.") from None
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            followed = ", and redirects are not followed" if 300 <= status < 400 else ""
            raise NotDelivered(f"the answer was {status}{followed}.")

    async def addresses(self, url: httpx.URL, called: str) -> list[Address]:
        """The addresses of the URL's host, which errors call so. Raises NotDelivered: nowhere, or to an address
        inside."""
        host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
        found = parsed(await to_thread.run_sync(self._look_up, host, port, LOOKUP_S))
        if not found:
            raise NotDelivered(f"{called} cannot be found.")
        # All of them: which one the next look-up names first is its owner's choice.
        if not all(self._allowed.takes(host, one) for one in found):
            # Not which: who may name hosts must not map the inside with them.
            raise NotDelivered(
                f"{called} leads to an internal address, which RINGLEADER_ALERT_HOSTS does not name.",
                final=True,
            )
        return found

    async def _at_one_of(
        self, found: Sequence[Address], url: httpx.URL, headers: Mapping[str, str], body: bytes
    ) -> int:
        *others, last = found[:MOST_ADDRESSES]
        for address in others:
            try:
                return await self._at(address, url, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._at(last, url, headers, body)

    async def _at(self, address: Address, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> int:
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        # `trust_env`: a proxy of the environment would look the name up by itself. A new client each time: kept
        # connections are told apart by their address alone, and this one was checked for this name. `timeout`: later
        # than the deadline of the whole, which is `post`'s.
        async with httpx.AsyncClient(
            verify=self._tls, trust_env=False, timeout=2 * self._deadline_s, follow_redirects=False
        ) as client:
            request = client.build_request(
                "POST",
                url.copy_with(host=str(address)),
                headers={**headers, "Host": url.netloc.decode("ascii")},
                content=body,
                extensions={"sni_hostname": url.raw_host.decode("ascii")},
            )
            # As a stream: the answer's body may have no end, and nobody needs it.
            answer = await client.send(request, stream=True)
            await answer.aclose()
            return answer.status_code
