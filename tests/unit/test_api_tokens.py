"""Tokens: shown once, kept as hashes, never worth more than their scope, gone when revoked or expired."""

import re
from pathlib import Path

import pytest
from control_plane import URL, Stage, stage

from ringleader_api.assembly import build
from ringleader_api.edge.credentials import TokenWeak, first_token
from ringleader_api.services.users import tokens


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


def test_a_token_is_random_prefixed_shown_once_and_hashed_at_rest(here: Stage) -> None:
    tokens = [here.token() for _ in range(3)]
    assert len(set(tokens)) == 3
    assert all(re.fullmatch(r"rl_[A-Za-z0-9_-]{43}", token) for token in tokens)
    listed = here.client.get("/api/v1/tokens")
    assert [t["prefix"] for t in listed.json()["items"]][:3] == [t[:10] for t in tokens[::-1]]
    here.control.store.close()  # what is in the write-ahead log goes into the file
    stored = b"".join(p.read_bytes() for p in here.home.glob("ringleader.db*"))
    for token in tokens:
        assert token not in listed.text
        assert token.encode() not in stored


def test_a_token_ends_when_it_expires_and_when_it_is_revoked_with_its_sessions(here: Stage) -> None:
    short = here.holding(here.token(expires_in_s=60))
    token = here.token()
    lasting, page = here.holding(token), here.holding("")
    page.post("/api/v1/login", json={"token": token})
    token_id = lasting.get("/api/v1/me").json()["token"]
    for client in (short, lasting, page):
        assert client.get("/api/v1/me").status_code == 200
    here.time.pass_s(61)
    assert short.get("/api/v1/me").status_code == 401
    assert lasting.get("/api/v1/me").status_code == 200
    assert here.client.delete(f"/api/v1/tokens/{token_id}").status_code == 204
    assert lasting.get("/api/v1/me").status_code == 401
    assert page.get("/api/v1/me").status_code == 401, "a session outlived the token it was made with"


def test_the_valid_tokens_of_a_user_are_bounded(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST", 4)  # one is in the home folder
    here.token(expires_in_s=60)
    kept = [here.client.post("/api/v1/tokens", json={"name": f"ci-{n}"}) for n in range(3)]
    assert [answer.status_code for answer in kept] == [201, 201, 409]
    assert kept[-1].json()["code"] == "too_many_tokens"
    here.user("ada", vision="viewer")
    here.time.pass_s(61)
    assert here.client.post("/api/v1/tokens", json={"name": "more"}).status_code == 201, "one has expired"
    assert here.client.delete(f"/api/v1/tokens/{kept[0].json()['id']}").status_code == 204
    assert here.client.post("/api/v1/tokens", json={"name": "more"}).status_code == 201, "one was revoked"
    assert here.client.post("/api/v1/tokens", json={"name": "more"}).status_code == 409


def test_the_last_use_of_a_token_is_noted(here: Stage) -> None:
    token = here.token(name="ci")

    def used() -> str | None:
        return next(t for t in here.client.get("/api/v1/tokens").json()["items"] if t["name"] == "ci")[
            "last_used_at"
        ]

    assert used() is None
    here.holding(token).get("/api/v1/me")
    first = used()
    here.time.pass_s(3600)
    here.holding(token).get("/api/v1/me")
    assert first is not None
    assert used() > first  # type: ignore[operator]


def test_a_scoped_token_is_capped_and_makes_no_better_one(here: Stage) -> None:
    job_id = here.submit()
    reader = here.holding(here.token(scope={"default": "viewer"}))
    assert reader.get("/api/v1/me").json()["roles"] == {"default": "viewer"}
    assert reader.get(f"/api/v1/jobs/{job_id}").status_code == 200
    assert reader.post(f"/api/v1/jobs/{job_id}/cancel").status_code == 403, (
        "its own job, but a viewer's token"
    )
    assert reader.post("/api/v1/tokens", json={"name": "more"}).status_code == 403
    home = next(t for t in here.client.get("/api/v1/tokens").json()["items"] if t["name"] == "home")
    assert reader.delete(f"/api/v1/tokens/{home['id']}").status_code == 403
    page = here.holding("")
    page.post("/api/v1/login", json={"token": here.token(scope={"default": "viewer"})})
    page.headers["Origin"] = URL
    assert page.post("/api/v1/tokens", json={"name": "more"}).status_code == 403, "a session is its token"
    assert reader.delete(f"/api/v1/tokens/{reader.get('/api/v1/me').json()['token']}").status_code == 204


def test_a_token_that_expires_makes_none_that_outlives_it(here: Stage) -> None:
    short = here.holding(here.token(expires_in_s=60))
    for asked in ({}, {"expires_in_s": 61}):
        answer = short.post("/api/v1/tokens", json={"name": "x", **asked})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_expiry")
    assert short.post("/api/v1/tokens", json={"name": "x", "expires_in_s": 59}).status_code == 201


def test_others_tokens_are_an_admins_alone(here: Stage) -> None:
    ada, bob = here.user("ada", default="admin"), here.user("bob", default="admin")
    bobs = bob.get("/api/v1/me").json()["token"]
    assert {t["user"] for t in ada.get("/api/v1/tokens?user=bob").json()["items"]} == set()
    assert ada.delete(f"/api/v1/tokens/{bobs}").status_code == 404
    assert ada.delete("/api/v1/tokens/tok_none").status_code == 404
    assert ada.post("/api/v1/tokens", json={"name": "x", "user": "bob"}).status_code == 403
    assert ada.post("/api/v1/tokens", json={"name": "x"}).status_code == 201
    assert {t["user"] for t in here.client.get("/api/v1/tokens").json()["items"]} == {"admin", "ada", "bob"}
    assert bob.get("/api/v1/me").status_code == 200


def test_a_new_token_file_takes_the_place_of_the_one_before(here: Stage) -> None:
    before = (here.home / "token").read_text()
    (here.home / "token").unlink()
    after = first_token(here.home)
    build(here.control.settings, here.cluster, here.time).store.close()
    assert here.holding(before).get("/api/v1/me").status_code == 401
    assert here.holding(after).get("/api/v1/me").json()["name"] == "admin"
    build(here.control.settings, here.cluster, here.time).store.close()
    assert here.holding(after).get("/api/v1/me").status_code == 200, "a restart revoked the token of the file"


def test_who_can_write_the_token_file_is_never_locked_out(here: Stage) -> None:
    eve = here.user("eve", every="admin")
    eve.delete("/api/v1/users/admin/roles/*")
    eve.delete("/api/v1/users/admin")
    assert here.client.get("/api/v1/me").status_code == 401
    build(here.control.settings, here.cluster, here.time).store.close()
    assert here.client.get("/api/v1/me").status_code == 401, "a restart alone undid what an admin has decided"
    (here.home / "token").unlink()
    build(here.control.settings, here.cluster, here.time).store.close()
    back = here.holding((here.home / "token").read_text())
    assert back.get("/api/v1/me").json()["roles"] == {"*": "admin"}


def test_a_token_file_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("admin")
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(TokenWeak):
        first_token(tmp_path)
