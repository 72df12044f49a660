"""Lists of jobs as tables: filtered, sorted by columns and metrics, by pages; over SQLite and PostgreSQL."""

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from control_plane import DATABASES, RESULT, SPEC, Stage, outcome, stage_over
from sqlalchemy import delete, select, update

from ringleader.wire.ingest import MetricRecord
from ringleader_api.services.jobs import groups
from ringleader_api.services.records.points import store_points
from ringleader_api.store.listed import fill
from ringleader_api.store.tables import Job, JobAttribute, MetricSummary

LISTED = "/api/v1/jobs"
LATE = ("-submitted_at", "name", "-metric:a:last:last")


@pytest.fixture(params=DATABASES)
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with stage_over(request, tmp_path) as here:
        yield here


def listed(here: Stage, **asked: Any) -> list[str]:
    answer = here.client.get(LISTED, params=asked)
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["items"]]


def refused(here: Stage, **asked: Any) -> str:
    answer = here.client.get(LISTED, params=asked)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["code"])


def by_pages(here: Stage, limit: int, **asked: Any) -> list[str]:
    """All jobs, page after page; in the orders of LATE a job comes in before each next page."""
    found: list[str] = []
    behind: dict[str, str] = {}
    while True:
        page = here.client.get(LISTED, params={**asked, "limit": limit, **behind}).json()
        found += [job["id"] for job in page["items"]]
        assert len(page["items"]) <= limit
        if page["next_cursor"] is None:
            return found
        behind = {"cursor": page["next_cursor"]}
        if asked["sort"] in LATE:
            here.submit(name="late", project="late")


def points(here: Stage, job_id: str, name: str, *values: float | None, first: int = 0) -> None:
    at = here.time()
    records = [
        MetricRecord(seq=step + 1, at=at, generation=1, step=step, values={name: value})
        for step, value in enumerate(values, first)
    ]
    with here.control.store.write() as session:
        store_points(session, job_id, records)


def summary(here: Stage, job_id: str, name: str = "loss") -> tuple[float, int, float, float] | None:
    with here.control.store.read() as session:
        row = session.get(MetricSummary, (job_id, name))
        return None if row is None else (row.last, row.last_step, row.min, row.max)


def test_a_list_is_filtered_by_owner_parameters_and_a_part_of_a_text(here: Stage) -> None:
    first = here.submit(name="Base_line", labels={"team": "vision"}, params={"lr": 0.1, "deep": {"lr": 0.2}})
    second = here.submit(name="other", labels={"team": "50%"}, params={"lr": "0.1", "fast": True, "n": None})
    theirs = here.user("ada", default="submitter").post(LISTED, json={**SPEC, "name": "x" * 90}).json()["id"]
    assert listed(here, owner="ada") == [theirs]
    assert listed(here, param="lr=0.1") == [theirs, second, first]
    assert listed(here, param="lr=0.10") == listed(here, param="lr=1e-1") == [theirs, second, first]
    assert listed(here, param=["lr=0.1", "fast=true"]) == listed(here, param="n=null") == [second]
    for nothing in ("deep.lr=0.2", 'deep={"lr": 0.2}', "lr=", "lr=0.1x", "fast=1"):
        assert listed(here, param=nothing) == [], nothing
    assert listed(here, search="e_LINE") == listed(here, search="am=vis", name="Base_line") == [first]
    assert listed(here, search=second[8:].lower()) == listed(here, search="%") == [second]
    assert listed(here, search="_l") == [first]
    assert listed(here, search="") == [theirs, second, first]
    assert listed(here, search="x" * 80, owner="ada", sort="name") == [theirs]


def test_every_order_holds_across_pages_while_jobs_come_in_and_what_lacks_a_value_is_last(
    here: Stage,
) -> None:
    jobs = [
        here.submit(
            name=f"n{k % 3}",
            project=f"p{k % 2}",
            labels={"k": f"{k % 2}"},
            priority=k % 3 - 2,
            params={} if k == 8 else {"lr": [-1e-300, 2, 10.0, 1e22, "a10", "a9", False, [1]][k]},
        )
        for k in range(9)
    ]
    with here.control.store.write() as session:
        for k, job_id in enumerate(jobs):
            ended = {"finished_at": here.time() + timedelta(seconds=k % 4), "duration_s": k % 4 / 3}
            changed = {
                "state": ("failed", "cancelled")[k % 2],
                "owner": f"u{k % 2}",
                "step": (k % 3) << 40,
                "world_size": 1 - k % 2,
                "attempt": k % 4,
                **(ended if k % 4 else {}),
            }
            session.execute(update(Job).where(Job.id == job_id).values(**changed))
    for k, job_id in enumerate(jobs):
        if k % 4:
            points(here, job_id, "a:last", 9.0, k % 4 / 3, -1e300 * (k % 2))
    keys: dict[str, Any] = {
        "submitted_at": lambda k: 0,
        "name": lambda k: k % 3,
        "state": lambda k: -(k % 2),
        "owner": lambda k: k % 2,
        "project": lambda k: k % 2,
        "priority": lambda k: k % 3,
        "finished_at": lambda k: k % 4 or None,
        "duration": lambda k: k % 4 or None,
        "step": lambda k: k % 3,
        "workers": lambda k: -(k % 2),
        "attempt": lambda k: k % 4,
        # Numbers by their size, behind them texts.
        "param:lr": lambda k: [-1e-300, 2, 10, 1e22, "a10", "a9", "false", None, None][k],
        "label:k": lambda k: k % 2,
        "metric:a:last:last": lambda k: -(k % 2) if k % 4 else None,
        "metric:a:last:min": lambda k: -(k % 2) * 9 or k % 4 if k % 4 else None,
        "metric:a:last:max": lambda k: 9 if k % 4 else None,
    }
    for name, key in keys.items():
        has, lacks = [[k for k in range(9) if (key(k) is None) is none] for none in (False, True)]
        for sign, down in (("", False), ("-", True)):
            has.sort(key=lambda k: (isinstance(key(k), str), key(k), k), reverse=down)
            order = has + sorted(lacks, reverse=down)
            for asked in ({}, {"search": "k=", "label": "k=1", "owner": "u1"}):
                wanted = [jobs[k] for k in order if not asked or k % 2]
                found = by_pages(here, 4, sort=f"{sign}{name}", **asked)
                assert [i for i in found if i in jobs] == wanted, (sign, name, asked)
                assert len(set(found)) == len(found), (sign, name, asked)


def test_a_cursor_of_another_order_and_one_that_is_torn_or_forged_are_refused(here: Stage) -> None:
    ids = [here.submit(name=f"n{k}") for k in range(3)]
    for job_id in ids:
        points(here, job_id, "loss", 1.0)
    orders = (
        "-submitted_at",
        "submitted_at",
        "name",
        "-name",
        "state",
        "priority",
        "duration",
        "-finished_at",
    )
    orders += ("metric:loss:last", "metric:loss:min", "-metric:loss:last")
    orders += ("step", "-workers", "param:lr", "-label:lr")
    given = {
        order: here.client.get(LISTED, params={"sort": order, "limit": 1}).json()["next_cursor"]
        for order in orders
    }
    for order in orders:
        for of, cursor in given.items():
            answer = here.client.get(LISTED, params={"sort": order, "cursor": cursor})
            assert answer.status_code == (200 if of == order else 422), (order, of)
            assert of == order or of in answer.json()["detail"]
    values = [None, True, 1, 1e400, nan, 1 << 70, "x", "\0", "\ud800", "2026-01-01", []]
    forged = [(order, json.dumps([order, value, ids[0]])) for order in orders[1:] for value in values]
    odd = ("[", "[]", "[" * 5000, '["name"]', '["name", 1, 2, 3]', '["name", "a", "x"]', "job_x", "[1, 2, 3]")
    forged += [("name", text) for text in (*odd, f"[{'1' * 5000}]")]
    for order, text in forged:
        cursor = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        answer = here.client.get(LISTED, params={"sort": order, "cursor": cursor})
        # A name, or a number where one belongs, is a place as any other.
        assert answer.status_code == 422 or text.startswith(f'["{order}"'), text
        assert answer.status_code in (200, 422), text
    torn = given["name"][:-3]
    assert (
        refused(here, sort="name", cursor=torn)
        == refused(here, sort="name", cursor=torn + "%")
        == "bad_cursor"
    )


def test_what_no_list_takes_is_refused_in_words(here: Stage) -> None:
    job_id = here.submit()
    points(here, job_id, "<b>a:b</b>", 2.0)
    assert listed(here, sort="-metric:<b>a:b</b>:max") == [job_id]
    for sort in (
        "",
        "-",
        "--name",
        "nonsense",
        "metric:loss",
        "metric::last",
        "metric:loss:first",
        "param:",
        "label",
        "--param:lr",
        "Name",
        "name ",
    ):
        assert refused(here, sort=sort) == "bad_sort", sort
    assert refused(here, sort=f"metric:{'x' * 251}:last") == "bad_sort"
    for asked in ({"sort": "x" * 301}, {"search": "x" * 201}, {"label": [f"k{n}=v" for n in range(1000)]}):
        assert here.client.get(LISTED, params=asked).status_code == 422, asked
    assert refused(here, param=[f"k{n}=v" for n in range(21)])
    assert (refused(here, param="lr"), refused(here, param="=1")) == ("bad_param", "bad_param")
    assert refused(here, metrics=",".join(f"m{n}" for n in range(11))) == "bad_list"
    assert here.client.get(LISTED, params={"search": "\0"}).status_code == 422
    assert listed(here, owner="\0") == listed(here, param="\0=\0") == []
    for odd in ("\U0001f600", "'; DROP TABLE jobs; --", "x" * 200):
        assert listed(here, search=odd) == listed(here, param=f"{odd}={odd}") == listed(here, owner=odd) == []
        assert listed(here, metrics=odd, sort=f"metric:{odd}:last") == [job_id]
        assert listed(here, sort=f"-param:{odd}") == listed(here, sort=f"label:{odd}") == [job_id]


def test_a_row_has_the_metrics_that_were_asked_for(here: Stage) -> None:
    first, second = here.submit(), here.submit()
    points(here, first, "loss", 3.0, 1.0, 2.0)
    points(here, first, "x", 5.0)
    page = here.client.get(LISTED, params={"metrics": "loss, nothing", "fields": "id"}).json()
    assert page["items"] == [
        {"id": second, "metrics": {}},
        {"id": first, "metrics": {"loss": {"last": 2.0, "min": 1.0, "max": 3.0, "step": 2}}},
    ]
    assert "metrics" not in here.client.get(LISTED).json()["items"][0]
    assert "metrics" not in here.job(first)


def test_a_summary_takes_each_point_once_whatever_is_posted_again(here: Stage) -> None:
    job_id = here.submit()
    points(here, job_id, "loss", None, nan, inf)
    assert summary(here, job_id) is None
    points(here, job_id, "loss", 2.0, None, 5.0, -inf)
    assert summary(here, job_id) == (5.0, 2, 2.0, 5.0)
    points(here, job_id, "loss", 1.0, 4.0, 9.0, 3.0)  # steps 0 and 2 keep their first values
    assert summary(here, job_id) == (3.0, 3, 2.0, 5.0)
    points(here, job_id, "loss", 2.5, first=7)
    points(here, job_id, "loss", 1.5, first=5)  # late, and not the newest
    assert summary(here, job_id) == (2.5, 7, 1.5, 5.0)
    points(here, job_id, "x" * 300, 1.0)
    assert summary(here, job_id, "x" * 250) == (1.0, 0, 1.0, 1.0)


def test_jobs_of_control_planes_of_the_version_before_are_filled_in(here: Stage) -> None:
    job_id, other = here.submit(labels={"a": "b"}, params={"lr": 0.1}, priority=-3), here.submit()
    points(here, job_id, "loss", 2.0, 1.0, 4.0)
    points(here, other, "loss", 7.0)
    then = {"listed": False, "priority": 0, "started_at": here.time()}
    then |= {"finished_at": here.time() + timedelta(seconds=90)}
    with here.control.store.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(**then))
        session.execute(delete(JobAttribute))
        session.execute(delete(MetricSummary))
    points(here, other, "loss", 3.0, first=1)  # beside points that were never summarised
    assert summary(here, other) == (3.0, 1, 3.0, 7.0)
    assert listed(here, label="a=b") == []
    here.tick()  # as the reconciler does once a minute
    for _ in range(2):
        assert listed(here, label="a=b", param="lr=0.1") == [job_id]
        assert summary(here, job_id) == (4.0, 2, 1.0, 4.0)
        assert listed(here, sort="priority") == listed(here, sort="duration") == [job_id, other]
        with here.control.store.read() as session:
            assert session.scalar(select(Job.duration_s).where(Job.id == job_id)) == 90
        fill(here.control.store.read, here.control.store.write)


def test_what_one_may_not_see_is_in_no_list_and_in_no_facet(here: Stage) -> None:
    hers = here.submit(project="vision", labels={"team": "a"}, params={"lr": 1})
    theirs = here.submit(
        project="speech", labels={"team": "b", "secret": "x"}, params={"hidden": 1}, priority=1
    )
    for job_id, name in ((hers, "loss"), (theirs, "hidden")):
        points(here, job_id, name, 1.0)
    ada, nobody = here.user("ada", vision="viewer"), here.user("eve")
    asked: list[dict[str, Any]] = [
        {"sort": sort} for sort in ("name", "-priority", "metric:hidden:last", "-duration")
    ]
    asked += [
        {"search": "b"},
        {"label": "team=b"},
        {"param": "hidden=1"},
        {"project": "speech"},
        {"owner": "admin"},
    ]
    for one in asked:
        items = ada.get(LISTED, params={**one, "metrics": "loss,hidden"}).json()["items"]
        assert {job["id"] for job in items} <= {hers}, one
        assert nobody.get(LISTED, params=one).json() == {"items": [], "next_cursor": None}
    seen = {"jobs": 1, "owners": ["admin"], "projects": ["vision"], "labels": {"team": ["a"]}}
    assert ada.get(f"{LISTED}/facets").json() == {**seen, "params": ["lr"], "metrics": ["loss"]}
    assert nobody.get(f"{LISTED}/facets").json()["jobs"] == 0
    whole = here.client.get(f"{LISTED}/facets").json()
    assert (whole["jobs"], whole["labels"]) == (2, {"secret": ["x"], "team": ["a", "b"]})
    assert here.client.get(f"{LISTED}/facets?project=speech").json()["params"] == ["hidden"]


def test_what_lists_keep_of_a_job_goes_with_it_and_follows_its_changes(here: Stage) -> None:
    job_id, other = here.running(), here.submit(name="other")
    points(here, job_id, "loss", 1.0)
    here.client.patch(f"{LISTED}/{job_id}", json={"priority": 7})
    assert listed(here, sort="-priority") == [job_id, other]
    here.time.pass_s(5)
    here.post(job_id, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick(2)
    assert listed(here, sort="duration") == [job_id, other]
    here.client.delete(f"{LISTED}/{job_id}")
    for sort in ("name", "-metric:loss:last", "duration", "priority"):
        assert listed(here, sort=sort) == [other], sort
    here.tick()
    with here.control.store.read() as session:
        for table in (JobAttribute, MetricSummary):
            assert set(session.scalars(select(table.job_id))) <= {other}


def test_labels_are_changed_in_any_state_and_lists_and_facets_follow(here: Stage) -> None:
    job_id, other = here.submit(labels={"team": "a", "old": "1"}, params={"lr": 1}), here.submit(labels={})

    def labelled(change: object, at: str = job_id, **headers: str) -> Any:
        return here.client.patch(f"{LISTED}/{at}", json={"labels": change}, headers=headers)

    tag = here.client.get(f"{LISTED}/{job_id}").headers["etag"]
    changed = labelled({"team": "b", "new-": "x y", "old": None, "none": None})
    assert changed.json()["labels"] == changed.json()["spec"]["labels"] == {"team": "b", "new-": "x y"}
    assert (changed.headers["etag"] == tag, labelled({}, **{"If-Match": tag}).status_code) == (False, 412)
    assert labelled({"team": "b"}).headers["etag"] == changed.headers["etag"]
    assert listed(here, label="team=a") == listed(here, label="old=1") == []
    assert listed(here, label="team=b", param="lr=1") == listed(here, search="X Y") == [job_id]
    assert here.client.get(f"{LISTED}/facets").json()["labels"] == {"team": ["b"], "new-": ["x y"]}
    here.client.post(f"{LISTED}/{job_id}/cancel")
    assert here.state(job_id) == "cancelled"
    assert labelled({"kept": "yes", "new-": None}).json()["labels"] == {"team": "b", "kept": "yes"}
    both = here.client.patch(f"{LISTED}/{job_id}", json={"labels": {"team": "c"}, "priority": -1})
    assert (both.status_code, here.job(job_id)["labels"]["team"]) == (409, "b")
    events = here.client.get(f"{LISTED}/{job_id}/events").json()["items"]
    assert [event["data"] for event in events if event["type"] == "labels.changed"] == [
        {"who": "admin", "set": {"team": "b", "new-": "x y"}, "removed": ["old"]},
        {"who": "admin", "set": {"kept": "yes"}, "removed": ["new-"]},
    ]
    for wrong in (None, 1, ["a"], {"a": 1}, {"": "b"}, {"a b": "c"}, {"a": "\n"}, {"a": "x" * 201}):
        assert labelled(wrong).status_code == 422, wrong
    assert labelled({f"k{n}": "" for n in range(1000)}).json()["code"] == "too_many_labels"
    assert labelled({f"k{n}": "" for n in range(1000)}, other).status_code == 200
    ann, eve = here.user("ann", default="submitter"), here.user("eve")
    answers = [who.patch(f"{LISTED}/{other}", json={"labels": {"a": "b"}}).status_code for who in (ann, eve)]
    assert answers == [403, 404]


def test_jobs_are_grouped_by_a_label_or_a_parameter_and_each_group_can_be_listed(here: Stage) -> None:
    runs = [
        here.submit(labels=labels, params=params)
        for labels, params in (
            ({"team": "a"}, {"lr": 0.1}),
            ({"team": "b"}, {"lr": "0.10"}),
            ({"team": "a"}, {"lr": [1]}),
            ({}, {"lr": True}),
        )
    ]
    for job_id, values in zip(runs, ((4.0, 1.0), (2.0,), (9.0, 3.0), (5.0,)), strict=True):
        points(here, job_id, "loss", *values)

    def found(who: Any = here.client, **asked: Any) -> dict[Any, list[str]]:
        answer = who.get(f"{LISTED}/groups", params=asked).json()
        kind = asked["by"].partition(":")[0]
        named = {one["value"]: listed(here, **{kind: one["filter"]}) for one in answer["groups"]}
        if who is here.client:
            assert [one["jobs"] for one in answer["groups"]] == [len(ids) for ids in named.values()]
        return named

    by_team = found(by="label:team")
    assert list(by_team.items()) == [("a", [runs[2], runs[0]]), ("b", [runs[1]]), (None, [runs[3]])]
    by_rate = {"0.1": [runs[0]], "0.10": [runs[1]], "true": [runs[3]], None: [runs[2]]}
    assert found(by="param:lr") == by_rate
    assert found(by="label:nothing") == {None: runs[::-1]}
    asked = {"by": "label:team", "metrics": "loss,other", "param": "lr=0.1"}
    (first,) = here.client.get(f"{LISTED}/groups", params=asked).json()["groups"]
    assert first["metrics"] == {"loss": {"last": 1.0, "min": 1.0, "max": 4.0, "jobs": 1}}
    whole = here.client.get(f"{LISTED}/groups", params={**asked, "param": []}).json()["groups"]
    assert whole[0]["metrics"] == {"loss": {"last": 3.0, "min": 1.0, "max": 9.0, "jobs": 2}}
    assert whole[2]["metrics"] == {"loss": {"last": 5.0, "min": 5.0, "max": 5.0, "jobs": 1}}
    assert found(here.user("eve"), by="label:team") == {}
    for wrong in ("team", "label:", "state:x", ""):
        assert here.client.get(f"{LISTED}/groups", params={"by": wrong}).json()["code"] == "bad_group"
    here.client.post(f"{LISTED}/{runs[2]}/cancel")
    assert here.client.delete(f"{LISTED}/{runs[2]}").status_code == 204
    one, _, none = here.client.get(f"{LISTED}/groups", params={**asked, "param": []}).json()["groups"]
    assert [group["metrics"]["loss"]["jobs"] for group in (one, none)] == [1, 1], "not the deleted one"
    assert (
        refused(here, label="!") == refused(here, label="!a b") == refused(here, label="team") == "bad_label"
    )
    assert refused(here, param="!") == refused(here, param="lr") == "bad_param"


def test_of_many_groups_the_greatest_are_shown_and_that_there_are_more_is_said(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for team in ("b", "b", "a", "c"):
        here.submit(labels={"team": team})
    here.submit(labels={})
    monkeypatch.setattr(groups, "MOST_GROUPS", 2)
    answer = here.client.get(f"{LISTED}/groups", params={"by": "label:team"}).json()
    assert [one["value"] for one in answer["groups"]] == ["b", "a", None]
    assert answer["more"] is True
