"""An OpenID Connect provider, as its client sees it: the log-in address, codes exchanged for tokens, the checks on a
token.

OpenID Connect Core 1.0 (authorisation code flow), PKCE by RFC 7636, discovery by OpenID Connect Discovery 1.0.
"""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

import httpx
import jwt

from ringleader_api.problems import BadGateway, Forbidden
from ringleader_api.settings import Settings

ALGORITHMS = ("RS256", "ES256")
"""Pinned: neither `none` nor an algorithm that would take a public key for a shared secret."""
LEEWAY_S = 60
TIMEOUT_S = 10.0
KEYS_AGAIN_S, KEYS_LAST_S = 30.0, 600.0
"""The ages at which the keys are fetched again: where one is unknown, and in any case. The provider may have withdrawn
a key, or put another under the same id; some give no ids."""
MOST_BYTES = 1 << 20
CLAIMS = ["iss", "sub", "aud", "exp", "iat", "nonce"]


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """The user, as the provider names them. `email` is empty unless the provider has verified it."""

    subject: str
    email: str


class Provider:
    """One provider. Its description and keys are fetched when first needed; the keys again when one is unknown, and
    after some minutes."""

    def __init__(self, issuer: str, client_id: str, client_secret: str, redirect_uri: str) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._redirect_uri = redirect_uri
        # No redirects: the client secret and the code must reach no other host than the one that was configured.
        self._http = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False)
        self._lock = threading.Lock()
        self._told: dict[str, Any] | None = None
        self._keys: dict[str, jwt.PyJWK] = {}
        self._keys_at = float("-inf")

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The provider of the settings; None: users log in with tokens only."""
        if not settings.oidc_issuer:
            return None
        back = f"{settings.url}/login/oidc/callback"
        return cls(settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret, back)

    def close(self) -> None:
        self._http.close()

    def where_to(self, state: str, nonce: str, verifier: str) -> str:
        """The address at which people log in. Raises BadGateway."""
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": "openid email",
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        address = str(self._description()["authorization_endpoint"])
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"

    def exchange(self, code: str, nonce: str, verifier: str) -> ProviderIdentity:
        """Exchange the code of a log-in for the identity of its user.

        Raises:
            BadGateway: the provider does not answer.
            Forbidden: it refuses the code, or its token fails a check.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "client_id": self._client_id,
            "code_verifier": verifier,
        }
        if self._client_secret:
            form["client_secret"] = self._client_secret
        answer = self._ask("POST", str(self._description()["token_endpoint"]), form)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise _refused("the identity provider did not accept the code")
        return self._believe(token, nonce)

    def _believe(self, token: str, nonce: str) -> ProviderIdentity:
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise _refused(
                    f"the ID token is signed with {header.get('alg')}, not {' or '.join(ALGORITHMS)}"
                )
            claims = jwt.decode(
                token,
                self._key(str(header.get("kid", ""))),
                algorithms=list(ALGORITHMS),
                audience=self._client_id,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": CLAIMS},
            )
        except jwt.PyJWTError as error:
            raise _refused(f"the ID token is not valid ({type(error).__name__})") from None
        # OpenID Connect Core 3.1.3.7: with several audiences the token has to name us as the authorised party.
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self._client_id) != self._client_id:
            raise _refused("the ID token was issued to another client")
        # Ties the token to this log-in: one that was stolen elsewhere has another nonce.
        if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
            raise _refused("the ID token belongs to another log-in")
        # With the issuer: subjects are unique within one provider only.
        return ProviderIdentity(f"{self._issuer}|{claims['sub']}", _address(claims))

    def _key(self, kid: str) -> jwt.PyJWK:
        # Held over the request, so that many log-ins at once fetch the keys once.
        with self._lock:
            age_s = time.monotonic() - self._keys_at  # made-up ids must not make us ask all the time
            if age_s > (KEYS_LAST_S if kid in self._keys else KEYS_AGAIN_S):
                self._keys_at = time.monotonic()
                told = self._ask("GET", str(self._description()["jwks_uri"]))
                self._keys = _signing_keys(told)
            found = self._keys.get(kid)
        if found is None:
            raise _refused("the ID token is signed with a key that the identity provider does not publish")
        return found

    def _description(self) -> Mapping[str, Any]:
        if self._told is None:
            told = self._ask("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            # Discovery 4.3: another issuer's document would make us trust its keys.
            if told.get("issuer") != self._issuer:
                raise BadGateway(
                    f"the identity provider reports the issuer {told.get('issuer')!r}, not {self._issuer!r}.",
                    hint="Set RINGLEADER_OIDC_ISSUER to exactly the issuer that the provider reports.",
                    code="provider_mismatch",
                )
            self._told = told
        return self._told

    def _ask(self, method: str, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
        try:
            with self._http.stream(method, url, data=form, headers={"Accept": "application/json"}) as answer:
                told = _bounded(answer)
        except (httpx.HTTPError, ValueError):
            told = None
        # An error to a form is the provider's answer about the code, which `exchange` reports.
        if not isinstance(told, dict) or (answer.is_error and form is None):
            raise BadGateway(
                "the identity provider does not answer, or its answer is not valid.",
                hint="Log in with a token, or try again in a minute.",
                code="provider_down",
            )
        return told


def _bounded(answer: httpx.Response) -> Any:
    """The answer's JSON; None where there are more than `MOST_BYTES` of it, which are not read."""
    body = bytearray()
    # Part by part: looked at once all had come, it would be in memory already.
    for part in answer.iter_bytes():
        body += part
        if len(body) > MOST_BYTES:
            return None
    return json.loads(body)


def _address(claims: Mapping[str, Any]) -> str:
    """The verified address; empty where it is not ASCII."""
    given = claims.get("email")
    # ASCII alone: the Kelvin sign in lower case is a k, and other letters fold likewise.
    if claims.get("email_verified") is not True or not isinstance(given, str) or not given.isascii():
        return ""
    return given.strip().lower()


def _signing_keys(told: Mapping[str, Any]) -> dict[str, jwt.PyJWK]:
    """The signing keys by key id; those of kinds that we do not accept are left out."""
    found = {}
    for entry in told.get("keys", []):
        if entry.get("use", "sig") != "sig" or entry.get("kty") not in ("RSA", "EC"):
            continue
        try:
            key = jwt.PyJWK.from_dict(entry)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in ALGORITHMS:
            found[str(entry.get("kid", ""))] = key
    return found


def _refused(why: str) -> Forbidden:
    return Forbidden(f"the log-in was refused: {why}.", hint="Start again at /login.", code="login_refused")
