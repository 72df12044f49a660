"""Lists come in pages by key: in one order, each item once, whatever comes and goes between two pages."""

import base64
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from control_plane import DATABASES, Stage, stage, stage_over

from ringleader_api.store.people import Project, Secret, Token, User

Key = tuple[str, ...]


@dataclass(frozen=True)
class List:
    """A list that has pages. `add` makes an item and returns its key; `row` is how the database finds it again."""

    path: str
    key: tuple[str, ...]
    add: Callable[[Stage, str], Key]
    row: type[Any]
    newest_first: bool = False

    def keys(self, page: Mapping[str, Any]) -> list[Key]:
        return [tuple(item[name] for name in self.key) for item in page["items"]]


def _user(here: Stage, name: str) -> Key:
    assert here.client.post("/api/v1/users", json={"name": name}).status_code == 201
    return (name,)


def _project(here: Stage, name: str) -> Key:
    assert here.client.post("/api/v1/projects", json={"name": name}).status_code == 201
    return (name,)


def _token(here: Stage, name: str) -> Key:
    return (here.client.post("/api/v1/tokens", json={"name": name}).json()["id"],)


def _secret(here: Stage, name: str) -> Key:
    """In either of two projects, so that names alone are in no order."""
    project = ("default", "a")[len(name) % 2]
    here.client.post("/api/v1/projects", json={"name": project})
    assert here.client.put(f"/api/v1/secrets/{project}/{name}", json={"value": "123456"}).status_code == 200
    return (project, name)


LISTS = [
    List("/api/v1/users", ("name",), _user, User),
    List("/api/v1/projects", ("name",), _project, Project),
    List("/api/v1/tokens", ("id",), _token, Token, newest_first=True),
    List("/api/v1/secrets", ("project", "name"), _secret, Secret),
]
each_list = pytest.mark.parametrize("of", LISTS, ids=lambda of: of.path.rpartition("/")[2])


@pytest.fixture(params=DATABASES)
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with stage_over(request, tmp_path) as here:
        yield here


def _drop(here: Stage, of: List, key: Key) -> None:
    with here.control.store.write() as session:
        session.delete(session.get_one(of.row, key if len(key) > 1 else key[0]))


@each_list
@pytest.mark.parametrize("seed", range(3))
def test_what_is_there_throughout_is_shown_once_and_in_order_whatever_comes_and_goes(
    here: Stage, of: List, seed: int
) -> None:
    draw = random.Random(seed)
    names = [f"{letter}{'x' * draw.randint(0, 3)}{n}" for n, letter in enumerate("KbZq0mAf9cTyRdEw")]
    there = set(of.keys(here.client.get(of.path).json()))
    ours = {of.add(here, names.pop()) for _ in range(7)}
    throughout, shown, pages, cursor = there | ours, list[Key](), 0, ""
    while True:
        page = here.client.get(f"{of.path}?limit=2{cursor}").json()
        assert len(page["items"]) <= 2
        shown += of.keys(page)
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
        last = shown[-1]  # what the cursor names may go, too
        if gone := [key for key in (last, draw.choice(sorted(ours))) if key in ours][:1]:
            _drop(here, of, gone[0])
            ours -= {*gone}
            throughout -= {*gone}
        ours |= {of.add(here, names.pop())}
    assert pages > 2
    assert len(set(shown)) == len(shown)
    assert throughout <= set(shown)
    whole = of.keys(here.client.get(f"{of.path}?limit=200").json())
    still = [key for key in shown if key in whole]
    assert still == [key for key in whole if key in shown], "pages are in the order of the whole list"


@each_list
def test_a_page_is_bounded_and_a_cursor_is_taken_by_the_list_that_gave_it_out(here: Stage, of: List) -> None:
    given = {}
    for other in LISTS:
        for name in ("one", "other1"):
            other.add(here, name)
        given[other.path] = here.client.get(f"{other.path}?limit=1").json()["next_cursor"]
    own = given.pop(of.path)
    assert here.client.get(of.path, params={"cursor": own}).status_code == 200
    name = of.path.rpartition("/")[2]
    forged = [base64.urlsafe_b64encode(text).decode().rstrip("=") for text in (
        b"", b"\xff", f"{name}/".encode(), f"{name}/a\0b".encode(), f"{name}/a/\0".encode(), b"tok_0",
    )]  # fmt: skip
    for cursor in (*given.values(), *forged, f"{own}!", f"{own}=", "!", "", "a", "\u00e9", "a" * 9000):
        answer = here.client.get(of.path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_cursor"), cursor
        assert answer.headers["content-type"] == "application/problem+json"
    assert [here.client.get(f"{of.path}?limit={limit}").status_code for limit in (0, 201, -1, "x")] == [
        422
    ] * 4


@each_list
def test_only_the_fields_of_items_that_are_asked_for_are_answered(here: Stage, of: List) -> None:
    of.add(here, "one")
    page = here.client.get(f"{of.path}?limit=1&fields={','.join(of.key)}").json()
    assert [set(item) for item in page["items"]] == [set(of.key)]
    assert "next_cursor" in page
    for hidden in ("sha256", "sealed", "subject"):
        wrong = here.client.get(f"{of.path}?fields={hidden}")
        assert (wrong.status_code, wrong.json()["code"]) == (422, "bad_fields")


def test_pages_hold_only_what_the_caller_may_see_and_are_full_all_the_same(here: Stage) -> None:
    ada = here.user("ada", b1="submitter", d1="viewer", f1="submitter")
    for project in ("a1", "b1", "c1", "d1", "e1", "f1"):
        here.client.post("/api/v1/projects", json={"name": project})
        here.client.put(f"/api/v1/secrets/{project}/s", json={"value": "123456"})
    seen: dict[str, list[str]] = {"projects": [], "secrets": []}
    for name, key in (("projects", "name"), ("secrets", "project")):
        cursor: str | None = ""
        while cursor is not None:
            page = ada.get(f"/api/v1/{name}?limit=1{cursor and f'&cursor={cursor}'}").json()
            assert len(page["items"]) == 1
            seen[name] += [item[key] for item in page["items"]]
            cursor = page["next_cursor"]
    assert seen == {"projects": ["b1", "d1", "f1"], "secrets": ["b1", "f1"]}


def test_artifacts_come_in_pages_by_name(tmp_path: Path) -> None:
    here = stage(tmp_path)
    job_id = here.submit()
    folder = here.home / "jobs" / job_id / "artifacts"
    folder.mkdir(parents=True)
    for name in ("b", "a.txt", "c", "Z"):
        (folder / name).write_text("x")
    path = f"/api/v1/jobs/{job_id}/artifacts"
    first = here.client.get(f"{path}?limit=3").json()
    (folder / "a.txt").unlink()
    (folder / "A").write_text("x")
    rest = here.client.get(f"{path}?limit=3&fields=name&cursor={first['next_cursor']}").json()
    assert [item["name"] for item in first["items"]] == ["Z", "a.txt", "b"]
    assert rest == {"items": [{"name": "c"}], "next_cursor": None}
    assert here.client.get(f"{path}?cursor=x").json()["code"] == "bad_cursor"
