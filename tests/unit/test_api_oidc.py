"""Logging in through an identity provider: who it vouches for gets in, whatever else somebody brings does not."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from control_plane import URL, Stage, stage
from fastapi.testclient import TestClient
from httpx2 import Response
from oidc_provider import CLIENT, OTHER_RSA, RSA_PEM, FakeProvider, by_ec, by_new_rsa, by_rsa, provider

from ringleader_api.edge.provider import MOST_BYTES, _bounded
from ringleader_api.settings import Settings, SettingsInvalid


@pytest.fixture
def idp() -> Iterator[FakeProvider]:
    with provider() as made:
        yield made


@pytest.fixture
def here(tmp_path: Path, idp: FakeProvider) -> Stage:
    return stage(tmp_path, oidc_issuer=idp.issuer, oidc_client_id=CLIENT)


def begun(client: TestClient, target: str = "/") -> str:
    answer = client.get("/login/oidc", params={"next": target}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def returned(client: TestClient, state: str, code: str) -> Response:
    return client.get("/login/oidc/callback", params={"state": state, "code": code})  # type: ignore[return-value]


def log_in(client: TestClient, idp: FakeProvider) -> Response:
    return returned(client, *idp.approve(begun(client)))


def test_who_the_provider_vouches_for_is_a_user_without_roles_until_an_admin_gives_some(
    here: Stage, idp: FakeProvider
) -> None:
    idp.claims = {"email": "Ada@Example.org", "email_verified": True}
    ada = here.holding("")
    assert 'href="/login/oidc?next=%2Fsubmit"' in ada.get("/login?next=/submit").text
    answer = returned(ada, *idp.approve(begun(ada, "/submit")))
    assert (answer.status_code, 'url=/submit"' in answer.text) == (200, True)
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    me = ada.get("/api/v1/me").json()
    assert (me["name"], me["roles"], me["token"]) == ("ada@example.org", {}, None)
    here.client.put("/api/v1/users/ada@example.org/roles/default", json={"role": "submitter"})
    assert ada.get("/api/v1/me").json()["roles"] == {"default": "submitter"}
    again = here.holding("")
    log_in(again, idp)
    assert again.get("/api/v1/me").json()["name"] == "ada@example.org"
    users = [u["name"] for u in here.client.get("/api/v1/users").json()["items"]]
    assert users == ["ada@example.org", "admin"]
    assert ("ada@example.org", "GET") in {
        (e["who"], e["method"]) for e in here.client.get("/api/v1/audit").json()["items"]
    }


def test_a_session_through_the_provider_lasts_half_a_day(here: Stage, idp: FakeProvider) -> None:
    ada = here.holding("")
    log_in(ada, idp)
    here.time.pass_s(11.9 * 3600)
    assert ada.get("/api/v1/me").status_code == 200
    here.time.pass_s(0.2 * 3600)
    assert ada.get("/api/v1/me").status_code == 401


def test_a_token_made_by_who_came_through_the_provider_ends_within_the_bound(
    here: Stage, idp: FakeProvider
) -> None:
    idp.claims = {"email": "ada@example.org", "email_verified": True}
    here.client.post("/api/v1/users", json={"name": "ada@example.org", "roles": {"*": "admin"}})
    invited = here.client.post("/api/v1/tokens", json={"name": "before", "user": "ada@example.org"}).json()
    ada = here.holding("")
    log_in(ada, idp)
    ada.headers["Origin"] = URL
    assert ada.get("/api/v1/me").json()["longest_token_s"] == 30 * 86_400
    within, beyond = {"expires_in_s": 30 * 86_400}, {"expires_in_s": 30 * 86_400 + 60}
    for client in (ada, here.holding(invited["token"])):
        for asked in ({}, beyond, {"user": "admin"}):
            answer = client.post("/api/v1/tokens", json={"name": "ci", **asked})
            assert (answer.status_code, answer.json()["code"]) == (422, "bad_expiry")
            assert "within 30 days" in answer.json()["hint"]
        assert client.post("/api/v1/tokens", json={"name": "ci", **within}).status_code == 201
    short = here.holding(
        ada.post("/api/v1/tokens", json={"name": "ci", "expires_in_s": 86_400}).json()["token"]
    )
    assert short.post("/api/v1/tokens", json={"name": "more", **within}).status_code == 422
    assert short.get("/api/v1/me").json()["longest_token_s"] == pytest.approx(86_400, abs=60)
    assert here.client.get("/api/v1/me").json()["longest_token_s"] is None
    assert here.client.post("/api/v1/tokens", json={"name": "x"}).status_code == 201, (
        "the bound is theirs alone"
    )


def test_the_bound_of_their_tokens_is_a_setting(tmp_path: Path, idp: FakeProvider) -> None:
    here = stage(tmp_path, oidc_issuer=idp.issuer, oidc_client_id=CLIENT, oidc_token_days=2)
    ada = here.holding("")
    log_in(ada, idp)
    ada.headers["Origin"] = URL
    codes = [
        ada.post("/api/v1/tokens", json={"name": "x", "expires_in_s": days * 86_400}).status_code
        for days in (2, 3)
    ]
    assert codes == [201, 422]


@pytest.mark.usefixtures("no_refill")
def test_guesses_at_tokens_keep_nobody_from_the_provider(here: Stage, idp: FakeProvider) -> None:
    client = here.holding("")
    guesses = [client.post("/api/v1/login", json={"token": "x"}).status_code for _ in range(25)]
    assert guesses[-1] == 429
    log_in(client, idp)
    assert client.get("/api/v1/me").status_code == 200


def test_both_pinned_algorithms_are_taken(here: Stage, idp: FakeProvider) -> None:
    for sign in (by_rsa, by_ec):
        idp.sign = sign
        client = here.holding("")
        log_in(client, idp)
        assert client.get("/api/v1/me").status_code == 200


def signed(key: Any, algorithm: str, kid: str = "rsa") -> Any:
    return lambda claims: jwt.encode(claims, key, algorithm, headers={"kid": kid})


def by_public_key(claims: dict[str, Any]) -> str:
    """HS256 with the public key as the shared secret; PyJWT itself refuses to sign so, an attacker does not."""
    import base64
    import hmac
    import json

    parts = [{"alg": "HS256", "typ": "JWT", "kid": "rsa"}, claims]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts)
    mac = base64.urlsafe_b64encode(hmac.digest(RSA_PEM, text, "sha256")).rstrip(b"=")
    return f"{text.decode()}.{mac.decode()}"


FORGED: dict[str, tuple[dict[str, Any], Any]] = {
    "another nonce": ({"nonce": "x"}, by_rsa),
    "no nonce": ({"nonce": None}, by_rsa),
    "another audience": ({"aud": "other"}, by_rsa),
    "several audiences, for another": ({"aud": [CLIENT, "other"], "azp": "other"}, by_rsa),
    "several audiences, for nobody": ({"aud": [CLIENT, "other"]}, by_rsa),
    "another issuer": ({"iss": "https://evil.test"}, by_rsa),
    "expired": ({"exp": int(time.time()) - 3600}, by_rsa),
    "no expiry": ({"exp": None}, by_rsa),
    "no subject": ({"sub": None}, by_rsa),
    "unsigned": ({}, signed(None, "none")),
    "signed with the public key": ({}, by_public_key),
    "signed with a shared secret": ({}, signed("s" * 64, "HS256")),
    "signed with another key": ({}, signed(OTHER_RSA, "RS256")),
    "signed with a key not published": ({}, signed(OTHER_RSA, "RS256", "new")),
    "signed with another algorithm": ({}, signed(OTHER_RSA, "PS256")),
    "no token": ({}, lambda claims: "x.y.z"),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_token_that_is_not_to_be_believed_lets_nobody_in(here: Stage, idp: FakeProvider, how: str) -> None:
    idp.claims, idp.sign = FORGED[how]
    client = here.holding("")
    answer = log_in(client, idp)
    assert answer.status_code == 403
    assert "the log-in was refused" in answer.text
    assert client.get("/api/v1/me").status_code == 401
    assert [u["name"] for u in here.client.get("/api/v1/users").json()["items"]] == ["admin"]


def test_a_log_in_belongs_to_one_browser_and_is_used_once(here: Stage, idp: FakeProvider) -> None:
    victim, attacker = here.holding(""), here.holding("")
    state, code = idp.approve(begun(attacker))
    assert returned(victim, state, code).status_code == 403, (
        "an attacker's log-in was planted in another browser"
    )
    query = idp.codes[code]
    assert returned(attacker, state, code).status_code == 200
    idp.codes[code] = query  # the provider would take it again
    attacker.cookies.set(f"{here.control.credentials.cookie}_login", state)
    assert returned(attacker, state, code).status_code == 403
    late = here.holding("")
    state, code = idp.approve(begun(late))
    here.time.pass_s(601)
    assert returned(late, state, code).status_code == 403


def test_a_code_is_worth_nothing_without_the_verifier_of_its_log_in(here: Stage, idp: FakeProvider) -> None:
    ada, eve = here.holding(""), here.holding("")
    _, stolen = idp.approve(begun(ada))
    state, _ = idp.approve(begun(eve))
    assert returned(eve, state, stolen).status_code == 403


def test_an_invited_address_is_linked_only_when_the_provider_has_verified_it(
    here: Stage, idp: FakeProvider
) -> None:
    here.client.post("/api/v1/users", json={"name": "ada@example.org", "roles": {"default": "operator"}})
    eve = here.holding("")
    idp.claims = {"sub": "eve", "email": "ada@example.org", "email_verified": False}
    log_in(eve, idp)
    assert eve.get("/api/v1/me").json()["name"].startswith("oidc-")
    ada = here.holding("")
    idp.claims = {"sub": "ada", "email": "ada@example.org", "email_verified": True}
    log_in(ada, idp)
    assert ada.get("/api/v1/me").json()["roles"] == {"default": "operator"}
    late = here.holding("")
    idp.claims = {"sub": "other", "email": "ada@example.org", "email_verified": True}
    assert log_in(late, idp).status_code == 403, "a second identity took over a user"
    mallory = here.holding("")
    idp.claims = {"sub": "m", "email": "admin", "email_verified": True, "preferred_username": "admin"}
    log_in(mallory, idp)
    assert mallory.get("/api/v1/me").json()["name"] != "admin"


@pytest.mark.parametrize("given", ["\u212a@corp.org", "K@corp.or\u0261", "k@\u212aorp.org"])
def test_an_address_that_only_looks_like_an_invited_one_opens_nothing_of_theirs(
    here: Stage, idp: FakeProvider, given: str
) -> None:
    """The Kelvin sign in lower case is a k."""
    for name in ("k@corp.org", "k@korp.org"):
        here.client.post("/api/v1/users", json={"name": name, "roles": {"*": "admin"}})
    idp.claims = {"email": given, "email_verified": True}
    client = here.holding("")
    log_in(client, idp)
    me = client.get("/api/v1/me").json()
    assert (me["name"].startswith("k@"), me["roles"]) == (False, {})


def test_a_disabled_user_is_kept_out(here: Stage, idp: FakeProvider) -> None:
    idp.claims = {"email": "ada@example.org", "email_verified": True}
    ada = here.holding("")
    log_in(ada, idp)
    here.client.delete("/api/v1/users/ada@example.org")
    assert ada.get("/api/v1/me").status_code == 401
    assert log_in(here.holding(""), idp).status_code == 403


def test_keys_are_asked_for_again_when_one_is_new_but_not_all_the_time(
    here: Stage, idp: FakeProvider
) -> None:
    idp.published, idp.sign = ("rsa",), by_ec
    for _ in range(3):
        assert log_in(here.holding(""), idp).status_code == 403
    assert idp.asked.count("/keys") == 1
    idp.published = ("rsa", "ec")
    here.control.provider._keys_at -= 31  # type: ignore[union-attr]
    assert log_in(here.holding(""), idp).status_code == 200
    assert (idp.asked.count("/keys"), idp.asked.count("/.well-known/openid-configuration")) == (2, 1)


def test_a_key_that_another_takes_the_place_of_is_believed_for_some_minutes_only(
    here: Stage, idp: FakeProvider
) -> None:
    assert log_in(here.holding(""), idp).status_code == 200
    idp.published, idp.sign = ("new rsa",), by_new_rsa
    assert log_in(here.holding(""), idp).status_code == 403
    here.control.provider._keys_at -= 601  # type: ignore[union-attr]
    assert log_in(here.holding(""), idp).status_code == 200
    idp.sign = by_rsa
    assert log_in(here.holding(""), idp).status_code == 403
    assert idp.asked.count("/keys") == 2


def test_a_provider_that_is_down_is_said_and_tokens_still_open(tmp_path: Path) -> None:
    here = stage(tmp_path, oidc_issuer="http://127.0.0.1:9", oidc_client_id=CLIENT)
    client = here.holding("")
    answer = client.get("/login/oidc")
    assert (answer.status_code, "does not answer" in answer.text) == (502, True)
    assert client.post("/api/v1/login", json={"token": (here.home / "token").read_text()}).status_code == 204
    plain = stage(tmp_path / "plain")
    assert plain.holding("").get("/login/oidc").status_code == 404
    assert "/login/oidc" not in plain.holding("").get("/login").text


@pytest.mark.parametrize(
    "given",
    [{"OIDC_ISSUER": "https://id.test"}, {"OIDC_ISSUER": "http://id.test", "OIDC_CLIENT_ID": "c"}],
    ids=str,
)
def test_half_a_provider_or_one_without_tls_is_refused(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid, match="RINGLEADER_OIDC_ISSUER"):
        Settings.from_env(
            {"RINGLEADER_HOME": str(tmp_path), **{f"RINGLEADER_{k}": v for k, v in given.items()}}
        )


def test_the_provider_leads_back_inside_only(here: Stage, idp: FakeProvider) -> None:
    client = here.holding("")
    answer = returned(client, *idp.approve(begun(client, "https://evil.test")))
    assert "evil" not in answer.text
    assert URL not in answer.text


def test_of_an_answer_without_an_end_no_more_than_the_bound_is_read() -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while read < 64 << 20:
            read += 1 << 16
            yield b"1" * (1 << 16)

    assert _bounded(httpx.Response(200, content=endless())) is None
    assert read <= MOST_BYTES + (2 << 16)
    assert _bounded(httpx.Response(200, content=iter([b'{"a"', b": 1}"]))) == {"a": 1}
