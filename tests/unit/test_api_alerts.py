"""Alerts of the control plane: rules, the watch over jobs, the outbox, and what the history shows."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from control_plane import DATABASES, Stage, event, metric, outcome, stage, stage_over, status
from receivers import Posted, Receiver, receiver, reply
from sqlalchemy import insert, select

from ringleader.spec.alerts import AlertTerms
from ringleader_api.alerting.addresses import Allowed
from ringleader_api.alerting.outbox import MOST_TRIES
from ringleader_api.problems import Unprocessable
from ringleader_api.services.alert_checks import ChannelChecks
from ringleader_api.store.alerts import AlertCursor, AlertRuleRow

KEY = "a-key-of-the-hook"
PROJECT = "/api/v1/projects/default/alerts"
FAILED: dict[str, Any] = {"state": "failed"}


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as here:
        yield here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Stage]:
    made = prepared(stage(tmp_path, alert_hosts="127.0.0.0/8"))
    yield made
    made.control.close()


def prepared(made: Stage) -> Stage:
    """With the project `default` and the secret that signs."""
    assert made.client.post("/api/v1/projects", json={"name": "default"}).status_code in (201, 409)
    assert made.client.put("/api/v1/secrets/default/HOOK", json={"value": KEY}).status_code == 200
    return made


def terms(hook: Receiver, when: dict[str, Any] = FAILED, path: str = "") -> dict[str, Any]:
    return {"when": when, "channels": [{"webhook": hook.url + path, "secret": "HOOK"}]}


def rule(made: Stage, name: str, body: dict[str, Any], expect: int = 200) -> Any:
    answer = made.client.put(f"{PROJECT}/{name}", json=body)
    assert answer.status_code == expect, answer.text
    return answer.json()


def fail(made: Stage, job_id: str) -> None:
    made.post(job_id, records=[outcome(9, "failed", "out_of_memory")])
    made.tick(2)
    assert made.state(job_id) == "failed"


def history(made: Stage, **wanted: Any) -> list[dict[str, Any]]:
    answer = made.client.get("/api/v1/alerts", params=wanted)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def test_a_rule_of_a_project_is_posted_signed_with_what_happened(here: Stage, hook: Receiver) -> None:
    rule(here, "broken", terms(hook))
    job_id = here.running()
    fail(here, job_id)
    here.control.alerting.tick()
    (posted,) = hook.posted
    body = json.loads(posted.body)
    assert (body["rule"], body["kind"], body["project"]) == ("broken", "state", "default")
    assert body["job"] == {
        "id": job_id,
        "name": "digits",
        "url": f"{here.control.settings.url}/jobs/{job_id}",
    }
    assert body["message"].startswith("digits has failed: ")
    signed = f"{body['id']}.{posted.headers['webhook-timestamp']}.".encode() + posted.body
    mac = base64.b64encode(hmac.new(KEY.encode(), signed, hashlib.sha256).digest()).decode()
    assert posted.headers["webhook-signature"] == f"v1,{mac}"
    assert posted.headers["webhook-id"] == body["id"]
    (shown,) = history(here, job=job_id)
    assert (shown["id"], shown["state"], shown["tries"], shown["error"]) == (body["id"], "sent", 1, "")
    here.control.alerting.tick()
    assert len(hook.posted) == 1, "once is enough"


def test_a_rule_looks_at_what_happens_from_now_on(here: Stage, hook: Receiver) -> None:
    before, during = here.running(), here.submit(workers={"min": 1, "max": 1})
    fail(here, before)
    here.tick()
    here.post(during, status=status("running"), records=[event(1, "worker.lost", worker="w1", cause="died")])
    rule(here, "broken", terms(hook))
    rule(here, "lost", terms(hook, {"worker_lost": True}))
    here.control.alerting.tick()
    assert hook.posted == []
    here.post(during, records=[event(2, "worker.lost", worker="w2", cause="died")])
    here.control.alerting.tick()
    assert [json.loads(one.body)["message"] for one in hook.posted] == ["digits lost 1 worker: w2"]


def test_a_metric_is_judged_behind_the_values_that_were_there(here: Stage, hook: Receiver) -> None:
    rule(here, "broken", terms(hook))
    job_id = here.running()
    here.post(job_id, records=[metric(1, 1, loss=50.0), metric(2, 2, loss=50.0)])
    here.control.alerting.tick()
    rule(here, "diverges", terms(hook, {"metric": "loss", "above": 10.0, "steps": 2}))
    here.post(job_id, records=[metric(3, 3, loss=50.0)])
    here.control.alerting.tick()
    assert hook.posted == []
    here.post(job_id, records=[metric(4, 4, loss=60.0), metric(5, 5, loss=70.0)])
    here.control.alerting.tick()
    (posted,) = hook.posted
    assert json.loads(posted.body)["data"] == {"metric": "loss", "step": 4, "value": 60.0, "above": 10.0}


def test_a_wait_is_told_when_it_is_over_its_time_and_nothing_else_happens(
    here: Stage, hook: Receiver
) -> None:
    rule(here, "waits", terms(hook, {"waits_longer_than_s": 60.0}))
    here.cluster.nodes = []
    here.submit()
    here.control.alerting.tick()
    here.time.pass_s(59)
    here.control.alerting.tick()
    assert hook.posted == []
    here.time.pass_s(2)
    here.control.alerting.tick()
    here.control.alerting.tick()
    assert [json.loads(one.body)["message"] for one in hook.posted] == ["digits has waited 61 s in the queue"]


def test_low_goodput_is_told(here: Stage, hook: Receiver) -> None:
    rule(here, "slow", terms(hook, {"goodput_below": 0.5, "over_s": 60.0}))
    job_id = here.running()
    for wall_s in (0.0, 30.0, 61.0):
        spent = {"wall_s": wall_s, "compute_s": wall_s / 4}
        here.post(job_id, status=status("running", spent=spent))
        here.time.pass_s(60)
        here.control.alerting.tick()
    (posted,) = hook.posted
    assert json.loads(posted.body)["data"] == {"goodput": 0.25, "over_s": 61.0}


def test_a_job_file_has_alerts_of_its_own(here: Stage, hook: Receiver) -> None:
    job_id = here.running(alerts=[{"name": "mine", **terms(hook)}])
    other = here.submit()
    fail(here, job_id)
    here.client.post(f"/api/v1/jobs/{other}/cancel")
    here.control.alerting.tick()
    (shown,) = history(here)
    assert (shown["rule"], shown["job"], shown["state"]) == ("mine", job_id, "sent")
    assert here.job(job_id)["spec"]["alerts"][0]["channels"][0]["secret"] == "HOOK"


def test_a_receiver_that_refuses_is_tried_again_ever_later_and_then_given_up(
    here: Stage, hook: Receiver
) -> None:
    hook.answer = lambda posted, handler: reply(handler, 500)
    rule(here, "broken", terms(hook))
    fail(here, here.running())
    waits = []
    for _ in range(MOST_TRIES):
        here.control.alerting.tick()
        (shown,) = history(here)
        if shown["due_at"] is not None:
            before = here.time.now
            while shown["due_at"] > here.time.now.isoformat().replace("+00:00", "Z"):
                here.time.pass_s(1)
            waits.append((here.time.now - before).total_seconds())
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600]
    assert (shown["state"], shown["tries"], shown["error"]) == ("failed", MOST_TRIES, "the answer was 500.")
    assert len({one.headers["webhook-id"] for one in hook.posted}) == 1, "doubles carry one id"
    assert history(here, state="failed") == [shown]
    assert history(here, state="sent") == []


def test_a_receiver_that_comes_back_gets_what_it_missed(here: Stage, hook: Receiver) -> None:
    hook.answer = lambda posted, handler: reply(handler, 503)
    rule(here, "broken", terms(hook))
    fail(here, here.running())
    here.control.alerting.tick()
    hook.answer = lambda posted, handler: reply(handler, 200)
    here.time.pass_s(1)
    here.control.alerting.tick()
    assert [one["state"] for one in history(here)] == ["sent"]


def test_redirects_are_not_followed(here: Stage, hook: Receiver) -> None:
    hook.answer = lambda posted, handler: reply(handler, 307, Location=hook.url + "/elsewhere")
    rule(here, "broken", terms(hook))
    fail(here, here.running())
    here.control.alerting.tick()
    assert [one.path for one in hook.posted] == ["/hook"]
    assert history(here)[0]["error"] == "the answer was 307, and redirects are not followed."


def test_an_answer_without_an_end_is_not_read(here: Stage, hook: Receiver) -> None:
    def endless(posted: Posted, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):  # its reader has gone
            while True:
                handler.wfile.write(b"x" * 65536)

    hook.answer = endless
    rule(here, "broken", terms(hook))
    fail(here, here.running())
    here.control.alerting.tick()
    assert history(here)[0]["state"] == "sent"


def test_one_that_hangs_keeps_only_its_own_waiting(here: Stage, hook: Receiver) -> None:
    """Many are due to it before the one to another."""
    with receiver() as other:
        rule(here, "hangs", {**terms(hook), "channels": [terms(hook)["channels"][0]] * 5})
        rule(here, "works", terms(other))
        fail(here, here.running())
        hook.answer = lambda posted, handler: reply(handler, 500)
        here.control.alerting.tick()
    assert (len(hook.posted), len(other.posted)) == (2, 1)


def test_a_test_goes_to_each_channel(here: Stage, hook: Receiver) -> None:
    body = terms(hook)
    body["channels"] += terms(hook, path="/second")["channels"]
    rule(here, "broken", body)
    answer = here.client.post(f"{PROJECT}/broken/test")
    assert (answer.status_code, [one["kind"] for one in answer.json()["items"]]) == (202, ["test", "test"])
    here.control.alerting.tick()
    assert sorted(one.path for one in hook.posted) == ["/hook", "/hook/second"]
    assert json.loads(hook.posted[0].body)["job"] is None
    assert here.client.post(f"{PROJECT}/none/test").status_code == 404


def test_rules_are_listed_replaced_and_deleted(here: Stage, hook: Receiver) -> None:
    made = rule(here, "broken", terms(hook))
    assert (made["name"], made["set_by"], made["when"]["state"]) == ("broken", "admin", "failed")
    rule(here, "broken", terms(hook, {"state": "succeeded"}))
    (listed,) = here.client.get(PROJECT).json()["items"]
    assert listed["when"]["state"] == "succeeded"
    assert here.client.delete(f"{PROJECT}/broken").status_code == 204
    assert here.client.delete(f"{PROJECT}/broken").status_code == 404
    assert here.client.get(PROJECT).json()["items"] == []
    fail(here, here.running())
    here.control.alerting.tick()
    assert hook.posted == []


def test_a_project_has_so_many_rules_at_most(here: Stage, hook: Receiver) -> None:
    made = terms(hook)
    at = here.time.now
    rows = [
        {"project": "default", "name": f"r{n}", "id": f"rule_{n}", "terms": made, "set_by": "a", "set_at": at}
        for n in range(100)
    ]
    with here.control.store.write() as session:
        session.execute(insert(AlertRuleRow), rows)
    assert rule(here, "one-more", terms(hook), expect=409)["code"] == "too_many_rules"
    rule(here, "r7", terms(hook, {"state": "paused"}))


def test_only_operators_set_rules_and_only_readers_see_them_and_what_they_raised(
    here: Stage, hook: Receiver
) -> None:
    rule(here, "broken", terms(hook))
    fail(here, here.running())
    viewer, stranger = here.user("vera", default="viewer"), here.user("sam", other="admin")
    keeper = here.user("olga", default="operator")
    for who, statuses in ((viewer, (200, 403, 403, 403)), (stranger, (404, 404, 404, 404))):
        answers = (
            who.get(PROJECT),
            who.put(f"{PROJECT}/x", json=terms(hook)),
            who.delete(f"{PROJECT}/broken"),
            who.post(f"{PROJECT}/broken/test"),
        )
        assert tuple(answer.status_code for answer in answers) == statuses
    here.control.alerting.tick()
    assert len(viewer.get("/api/v1/alerts").json()["items"]) == 1
    assert stranger.get("/api/v1/alerts").json()["items"] == []
    assert stranger.get("/api/v1/alerts?project=default").json()["items"] == []
    assert keeper.put(f"{PROJECT}/x", json=terms(hook)).status_code == 200


def test_the_history_comes_in_pages_newest_first(here: Stage, hook: Receiver) -> None:
    rule(here, "broken", terms(hook))
    for _ in range(5):
        here.client.post(f"{PROJECT}/broken/test")
    first = here.client.get("/api/v1/alerts?limit=3").json()
    rest = here.client.get("/api/v1/alerts", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    ids = [one["id"] for one in first["items"] + rest["items"]]
    assert (len(ids), ids, rest["next_cursor"]) == (5, sorted(ids, reverse=True), None)
    assert here.client.get("/api/v1/alerts?cursor=odd").json()["code"] == "bad_cursor"


def test_what_ended_long_ago_leaves_the_history(here: Stage, hook: Receiver) -> None:
    rule(here, "broken", terms(hook))
    here.client.post(f"{PROJECT}/broken/test")
    here.control.alerting.tick()
    here.time.pass_s(31 * 86_400)
    here.client.post(f"{PROJECT}/broken/test")
    here.control.alerting.tick()
    assert len(history(here)) == 1


def test_no_secret_is_in_answers_and_rows(here: Stage, hook: Receiver) -> None:
    hook.answer = lambda posted, handler: reply(handler, 500)
    rule(here, "broken", terms(hook))
    fail(here, here.running(alerts=[{"name": "mine", **terms(hook)}]))
    here.control.alerting.tick()
    told = [here.client.get(path).text for path in (PROJECT, "/api/v1/alerts", "/api/v1/audit")]
    assert KEY not in "".join(told)
    assert KEY.encode() not in b"".join(one.body for one in hook.posted)


def test_a_secret_that_is_gone_is_waited_for(here: Stage, hook: Receiver) -> None:
    rule(here, "broken", terms(hook))
    fail(here, here.running())
    here.client.delete("/api/v1/secrets/default/HOOK")
    here.control.alerting.tick()
    assert history(here)[0]["error"] == "there is no secret 'HOOK' in project 'default'."
    here.client.put("/api/v1/secrets/default/HOOK", json={"value": KEY})
    here.time.pass_s(1)
    here.control.alerting.tick()
    assert history(here)[0]["state"] == "sent"


def test_alerts_of_a_job_that_is_deleted_are_still_sent_and_shown(here: Stage, hook: Receiver) -> None:
    rule(here, "broken", terms(hook))
    job_id = here.running()
    fail(here, job_id)
    here.client.delete(f"/api/v1/jobs/{job_id}")
    here.control.alerting.tick()
    here.tick(2)
    assert [(one["job"], one["state"]) for one in history(here)] == [(job_id, "sent")]


BAD = {
    "loopback": ("http://127.0.0.1:1/x", "/channels/0/webhook"),
    "private": ("https://10.0.0.8/x", "/channels/0/webhook"),
    "metadata": ("http://169.254.169.254/latest", "/channels/0/webhook"),
    "mapped": ("http://[::ffff:127.0.0.1]/x", "/channels/0/webhook"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_address_inside_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    address, place = BAD[case]
    made = prepared(stage(tmp_path))
    channel = {"webhook": address, "secret": "HOOK"}
    told = rule(made, "x", {"when": FAILED, "channels": [channel]}, expect=422)
    assert told["errors"][0]["pointer"] == place
    spec = {
        "name": "a",
        "entrypoint": "a:b",
        "alerts": [{"name": "x", "when": FAILED, "channels": [channel]}],
    }
    for path in ("/api/v1/jobs", "/api/v1/jobs?dry_run=true"):
        answer = made.client.post(path, json=spec)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, f"/alerts/0{place}")
    made.control.close()


def test_a_name_that_leads_inside_is_refused_and_one_that_is_not_found_may_be_there_later(
    here: Stage,
) -> None:
    terms = AlertTerms.model_validate(
        {"when": FAILED, "channels": [{"webhook": "https://in.example.org/x", "secret": "HOOK"}]}
    )
    asked: list[str] = []

    def checks(*found: str) -> ChannelChecks:
        def look_up(host: str, port: int, within_s: float) -> list[str]:
            asked.append(host)
            return list(found)

        control = here.control
        return ChannelChecks(control.store, control.secrets, Allowed(), mails=False, look_up=look_up)

    with pytest.raises(Unprocessable, match="leads to an internal address"):
        checks("1.1.1.1", "10.0.0.1").check("default", {"": terms}, "the rule")
    warnings = checks().check("default", {"/a": terms, "/b": terms}, "the rule")
    assert warnings == ["The host in.example.org has no address now. Alerts to it fail until it has one."]
    assert asked == ["in.example.org"] * 2, "each name once"
    assert checks("1.1.1.1").check("default", {"": terms}, "the rule") == []


def test_what_a_channel_needs_has_to_be_there(here: Stage, hook: Receiver) -> None:
    none = {**terms(hook)["channels"][0], "secret": "NONE"}
    for channel, place in (
        (none, "secret"),
        ({"slack": "NONE"}, "slack"),
        ({"mail": "a@example.org"}, "mail"),
    ):
        told = rule(here, "x", {"when": FAILED, "channels": [channel]}, expect=422)
        assert told["errors"][0]["pointer"] == f"/channels/0/{place}"
    assert "RINGLEADER_SMTP_HOST" in told["hint"]


def test_rules_that_are_wrong_are_refused_by_place(here: Stage, hook: Receiver) -> None:
    told = rule(here, "x", {**terms(hook), "when": {"metric": "loss"}}, expect=422)
    assert told["errors"][0]["pointer"] == "/when"
    assert rule(here, "x", {**terms(hook), "every": 1}, expect=422)["errors"][0]["pointer"] == "/every"
    assert here.client.put(f"{PROJECT}/%3Cb%3E", json=terms(hook)).status_code == 422
    job = {"alerts": [{"name": "x", **terms(hook), "when": {"state": "odd"}}]}
    answer = here.client.post("/api/v1/jobs", json={"name": "a", "entrypoint": "a:b", **job})
    assert answer.json()["errors"][0]["pointer"] == "/alerts/0/when/state"


@pytest.fixture(params=DATABASES)
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with stage_over(request, tmp_path) as made:
        yield prepared(made)


def test_rows_and_cursors_are_kept_alike_in_both_databases(either: Stage) -> None:
    """Nothing is sent: the secret leads inside, which is known when it is read."""
    either.client.put("/api/v1/secrets/default/SLACK", json={"value": "http://127.0.0.1:1/x"})
    job_id = either.running()
    channels = [{"slack": "SLACK"}]
    rule(either, "lost", {"when": {"worker_lost": True}, "channels": channels})
    rule(either, "high", {"when": {"metric": "loss", "above": 1.0}, "channels": channels})
    told = [metric(1, 1, loss=2.0), event(1, "worker.lost", worker="w1", cause="died")]
    either.post(job_id, records=told)
    for _ in range(2):
        either.control.alerting.tick()
    shown = sorted(history(either, job=job_id), key=lambda one: str(one["rule"]))
    assert [(one["rule"], one["state"], one["tries"]) for one in shown] == [
        ("high", "failed", 1),
        ("lost", "failed", 1),
    ]
    assert "RINGLEADER_ALERT_HOSTS" in shown[0]["error"]
    fail(either, job_id)
    for _ in range(2):
        either.control.alerting.tick()
    with either.control.store.read() as session:
        assert session.scalars(select(AlertCursor.open)).all() == [False]


def test_a_key_that_no_rule_has_is_named_as_unknown(here: Stage, hook: Receiver) -> None:
    wrong = rule(here, "odd", terms(hook, {"stat": "failed"}), expect=422)["errors"]
    assert [(one["pointer"], one["message"]) for one in wrong] == [("/when/stat", "unknown key 'stat'")]
