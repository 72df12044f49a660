"""The commands on who may do what, against the real application in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from control_plane import URL, Stage, stage

from ringleader.cli.main import main
from ringleader.client import Client
from ringleader_api.edge.credentials import new_token
from ringleader_api.rights import WHOLE
from ringleader_api.store.people import Project, Secret, User

Run = Callable[..., tuple[int, str, str]]


class Inside(httpx.BaseTransport):
    """Hands requests to the application without a network."""

    def __init__(self, here: Stage) -> None:
        self._client = here.holding("")

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = {k: v for k, v in request.headers.items() if k != "accept-encoding"}
        answer = self._client.request(
            request.method, str(request.url), content=request.read(), headers=headers
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    return stage(tmp_path)


@pytest.fixture
def run(here: Stage, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, token: str = "") -> tuple[int, str, str]:
        token = token or (here.home / "token").read_text()
        code = main(arguments, connect=lambda: Client(URL, token, transport=Inside(here), patience_s=0))
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


def test_a_user_with_a_token_is_made_used_and_shut_out(run: Run) -> None:
    assert run("project", "create", "vision")[0] == 0
    assert run("user", "create", "ada", "--role", "vision=submitter")[1] == "ada: vision=submitter\n"
    code, token, note = run("token", "create", "laptop", "--user", "ada", "--expires", "90d")
    token = token.strip()
    assert (code, token[:3]) == (0, "rl_")
    assert "cannot be shown again" in note
    assert run("whoami", token=token)[1] == "user   ada\nroles  vision=submitter\n"
    assert run("project", "list", token=token)[1].splitlines()[1].split()[:2] == ["vision", "submitter"]
    assert run("user", "grant", "ada", "operator", "--project", "vision")[1] == "ada: vision=operator\n"
    assert run("user", "withdraw", "ada", "--project", "vision")[0] == 0
    assert run("whoami", token=token)[1] == "user  ada\n"
    code, _, error = run("user", "list", token=token)
    assert (code, "forbidden" in error) == (1, True)
    run("user", "disable", "ada")
    assert "disabled" in run("user", "list")[1]
    assert run("whoami", token=token)[0] == 1
    run("user", "enable", "ada")
    assert run("whoami", token=token)[0] == 0


def test_tokens_are_listed_without_themselves_and_revoked(run: Run) -> None:
    made = json.loads(run("token", "create", "ci", "--scope", "default=submitter", "-o", "json")[1])
    assert made["scope"] == {"default": "submitter"}
    listed = run("token", "list")[1]
    assert made["token"] not in listed
    assert "default=submitter" in listed
    assert run("token", "revoke", made["id"])[0] == 0
    assert "revoked" in run("token", "list")[1]
    assert run("whoami", token=made["token"])[0] == 1


@pytest.mark.parametrize(
    "wrong", [("--scope", "default=king"), ("--expires", "soon"), ("--scope", "default=")], ids=str
)
def test_a_wrong_scope_or_time_is_wrong_usage(run: Run, wrong: tuple[str, str]) -> None:
    assert run("token", "create", "x", *wrong)[0] == 2


def test_a_secret_is_read_from_standard_input_and_listed_by_name(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "value").write_text("hunter22\n")
    with (tmp_path / "value").open() as given:
        monkeypatch.setattr("sys.stdin", given)
        assert run("secret", "set", "hub")[1] == "default/hub: set\n"
    listed = run("secret", "list")[1]
    assert "hub" in listed
    assert "hunter22" not in listed
    assert run("secret", "delete", "hub")[0] == 0
    assert run("secret", "list")[1] == "no secrets\n"


def test_the_audit_log_is_shown_newest_first_and_by_user(run: Run) -> None:
    run("project", "create", "vision")
    run("user", "create", "ada", "--role", "viewer")
    token = run("token", "create", "t", "--user", "ada")[1].strip()
    run("project", "create", "mine", token=token)
    rows = run("audit")[1].splitlines()
    assert [("POST /api/v1/projects" in r, "403" in r) for r in rows[1:2]] == [(True, True)]
    assert len(run("audit", "--by", "ada")[1].splitlines()) == 2
    assert len(run("audit", "--limit", "2")[1].splitlines()) == 3


def test_a_project_is_shared_out_and_the_list_shows_what_is_held_of_the_quota(run: Run) -> None:
    run("project", "create", "vision")
    code, said, _ = run("project", "share", "vision", "--weight", "2.5", "--workers", "8", "--gpus", "4")
    assert (code, said) == (0, "vision: weight=2.5 workers=8 cpus=none gpus=4\n")
    assert run("project", "share", "vision", "--gpus", "none")[1].endswith("cpus=none gpus=none\n")
    rows = [row.split() for row in run("project", "list")[1].splitlines()]
    assert rows[0][2:8] == ["WEIGHT", "WORKERS", "CPUS", "GPUS", "RUNNING", "WAITING"]
    assert next(row for row in rows if row[0] == "vision")[2:8] == ["2.5", "0/8", "0", "0", "0", "0"]
    assert run("project", "share", "vision")[0] == 2
    assert run("project", "share", "vision", "--workers", "many")[0] == 2
    assert run("project", "share", "nobody", "--weight", "1")[0] == 1


def test_lists_are_read_to_their_last_page(here: Stage, run: Run) -> None:
    names = [f"n{number:03d}" for number in range(201)]
    at = here.time()
    with here.control.store.write() as session:
        session.add_all(User(name=name, created_at=at) for name in names)
        session.add_all(Project(name=name, created_at=at) for name in names)
        session.flush()
        session.add_all(
            new_token(name, user=name, name=name, scope=WHOLE, at=at, expires_at=None) for name in names
        )
        session.add_all(
            Secret(project="n000", name=name, sealed=b"", set_by="admin", set_at=at) for name in names
        )
    for kind in ("user", "project", "token", "secret"):
        code, listed, _ = run(kind, "list", "-o", "json")
        shown = [item["name"] for item in json.loads(listed)]
        assert (code, len(shown), set(names) - set(shown)) == (0, len(set(shown)), set()), kind
