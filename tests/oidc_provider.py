"""An OpenID Connect provider on loopback for tests: checks PKCE, and signs whatever a test tells it to."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT = "ringleader"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
RSA_PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

Sign = Callable[[dict[str, Any]], str]


def by_rsa(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, RSA, "RS256", headers={"kid": "rsa"})


def by_ec(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, EC, "ES256", headers={"kid": "ec"})


def by_new_rsa(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, OTHER_RSA, "RS256", headers={"kid": "rsa"})


@dataclass
class FakeProvider:
    """`claims` go into the next tokens; None takes one out. `asked` lists the paths of requests."""

    server: ThreadingHTTPServer
    host: str = "127.0.0.1"
    claims: dict[str, Any] = field(default_factory=dict)
    sign: Sign = by_rsa
    published: tuple[str, ...] = ("rsa", "ec")
    asked: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def issuer(self) -> str:
        return f"http://{self.host}:{self.server.server_address[1]}"

    def approve(self, address: str) -> tuple[str, str]:
        """What a person does there: log in and be sent back. Returns (state, code)."""
        assert address.startswith(f"{self.issuer}/authorize?"), address
        query = {k: v[0] for k, v in parse_qs(urlsplit(address).query).items()}
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        assert query["client_id"] == CLIENT
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return query["state"], code

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            names = {
                "authorization_endpoint": "authorize",
                "token_endpoint": "token",
                "jwks_uri": "keys",
            }
            return 200, {"issuer": self.issuer} | {k: f"{self.issuer}/{v}" for k, v in names.items()}
        if path == "/keys":
            return 200, {"keys": [_published(name) for name in self.published]}
        if path == "/token":
            return self._token(form)
        return 404, {}

    def _token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        query = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            query is None
            or challenge != query["code_challenge"]
            or form["redirect_uri"] != query["redirect_uri"]
        ):
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": "s1", "aud": CLIENT, "iat": now, "exp": now + 300}
        claims |= {"nonce": query["nonce"], **self.claims}
        return 200, {"id_token": self.sign({k: v for k, v in claims.items() if v is not None})}


def _published(name: str) -> dict[str, Any]:
    if name == "ec":
        return {**json.loads(ECAlgorithm.to_jwk(EC.public_key())), "kid": name, "use": "sig"}
    key = OTHER_RSA if name == "new rsa" else RSA
    return {**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": "rsa", "use": "sig", "alg": "RS256"}


@contextmanager
def provider(host: str = "127.0.0.1") -> Iterator[FakeProvider]:
    """A provider that listens until the block ends."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            if self.path.startswith("/authorize?"):  # a browser: whoever it is, is logged in here
                state, code = made.approve(made.issuer + self.path)
                back = f"{made.codes[code]['redirect_uri']}?{urlencode({'state': state, 'code': code})}"
                self.send_response(303)
                self.send_header("Location", back)
                self.end_headers()
                return
            form = {k: v[0] for k, v in parse_qs(self.rfile.read(length).decode()).items()}
            status, body = made.answer(self.path, form)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    made = FakeProvider(server, host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
