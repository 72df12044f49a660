"""Secrets: written only, encrypted at rest, handed to the attempts that name them, masked in what these tell."""

import hashlib
import hmac
import json
import pickle
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from control_plane import RESULT, SPEC, Stage, event, line, metric, outcome, stage
from sqlalchemy import update

from ringleader.errors import SpecInvalid
from ringleader.files import write_once
from ringleader.runtime.nodes import cluster
from ringleader.spec import JobSpec
from ringleader_api.backend import RayBackend
from ringleader_api.services.secrets import SecretsKeyTorn
from ringleader_api.store.people import Secret

VALUE = "hf_5ecretV4lue"
NAMED = {"project": "vision", "secrets": {"HF_TOKEN": "hub"}}


@pytest.fixture
def here(tmp_path: Path) -> Stage:
    here = stage(tmp_path)
    here.client.post("/api/v1/projects", json={"name": "vision"})
    answer = here.client.put("/api/v1/secrets/vision/hub", json={"value": VALUE})
    assert answer.status_code == 200, answer.text
    return here


def everything(here: Stage, job_id: str) -> str:
    """All that the API tells of a job, and of secrets."""
    paths = ["", "/events", "/logs", "/metrics", "/workers"]
    told = [here.client.get(f"/api/v1/jobs/{job_id}{path}").text for path in paths]
    return "".join([*told, here.client.get("/api/v1/secrets").text, here.client.get("/api/v1/audit").text])


def ask(here: Stage, job_id: str, token: str) -> httpx.Response:
    answer: httpx.Response = here.holding(token).get(f"/api/v1/jobs/{job_id}/secrets")
    return answer


def test_the_supervisor_of_the_living_attempt_gets_the_value_and_nobody_else(here: Stage) -> None:
    job_id, other = here.started(**NAMED), here.submit()
    launch = here.cluster.alive[job_id, 1]
    told = ask(here, job_id, launch.ingest_token)
    assert (told.json(), told.headers["cache-control"]) == ({"values": {"HF_TOKEN": VALUE}}, "no-store")
    admin = (here.home / "token").read_text()
    assert [ask(here, job_id, token).status_code for token in (admin, "wrong", "")] == [403, 401, 401]
    assert ask(here, other, launch.ingest_token).status_code == 401
    assert VALUE not in everything(here, job_id)
    listed = here.client.get("/api/v1/secrets").json()["items"]
    assert [(s["project"], s["name"], s["set_by"]) for s in listed] == [("vision", "hub", "admin")]
    assert here.client.get("/api/v1/secrets/vision/hub").status_code in (404, 405)
    here.client.delete("/api/v1/secrets/vision/hub")
    gone = ask(here, job_id, launch.ingest_token)
    assert (gone.status_code, gone.json()["code"]) == (404, "secret_missing")
    here.post(job_id, records=[outcome(1, "failed", "platform_error")])
    here.client.put("/api/v1/secrets/vision/hub", json={"value": VALUE})
    here.tick(3)
    assert (launch.attempt, here.job(job_id)["attempt"]) == (1, 2)
    assert ask(here, job_id, launch.ingest_token).json()["code"] == "stale_attempt"


def test_no_secret_is_in_what_ray_keeps_of_an_actor(here: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = here.started(**NAMED)
    orders: list[cluster.AttemptLaunch] = []
    backend = RayBackend("127.0.0.1:1", warm_per_node=0)
    monkeypatch.setattr(RayBackend, "_call", lambda self, method, order: orders.append(order))
    backend.start(here.cluster.alive[job_id, 1])
    arguments = pickle.dumps(orders[0].set_down())
    assert (b"HF_TOKEN" in arguments, b"hub" in arguments) == (True, True), "the job file is there"
    assert VALUE.encode() not in arguments


def test_what_a_job_tells_is_masked_even_where_it_prints_its_secret(here: Stage) -> None:
    here.client.put("/api/v1/secrets/vision/hub", json={"value": f"{VALUE}\nsecond-line"})
    job_id = here.running(**NAMED)
    told = [
        line(1, f"token={VALUE}!"),
        line(2, "second-line of it"),
        event(1, "note", deep=[{VALUE: f"x{VALUE}"}]),
        metric(1, 0, **{f"loss_{VALUE}": 1.0}),
        outcome(1, "failed", "entrypoint_raised"),
    ]
    told[-1]["reason"]["message"] = f"ValueError: {VALUE}"
    here.post(job_id, records=told)
    here.tick()
    text = everything(here, job_id)
    assert VALUE not in text
    assert "second-line" not in text
    lines = here.client.get(f"/api/v1/jobs/{job_id}/logs").json()["items"]
    assert [item["line"] for item in lines] == ["token=***!", "*** of it"]
    assert here.job(job_id)["reason"]["message"] == "ValueError: ***"
    assert here.client.get(f"/api/v1/jobs/{job_id}/metrics").json()["names"] == ["loss_***"]


def test_names_of_scores_are_masked_too(here: Stage) -> None:
    job_id = here.running(**NAMED)
    result = {**RESULT, "scores": {f"is {VALUE}": 1.0}, "reproducible_why": f"{VALUE} is odd"}
    here.post(job_id, records=[outcome(1, "succeeded", result=result)])
    told = here.job(job_id)["result"]
    assert (told["scores"], told["reproducible_why"]) == ({"is ***": 1.0}, "*** is odd")


@pytest.mark.parametrize("word", ["message", "scores", "samples"])
def test_a_secret_that_reads_like_a_word_of_an_end_keeps_no_job_from_it(here: Stage, word: str) -> None:
    here.client.put("/api/v1/secrets/vision/hub", json={"value": word})
    failed, succeeded = here.running(**NAMED), here.submit(**NAMED, workers={"min": 1, "max": 1})
    here.post(failed, records=[outcome(1, "failed", "entrypoint_raised")])
    here.tick(3)
    here.post(succeeded, records=[outcome(1, "succeeded", result=RESULT)])
    here.tick(2)
    assert [here.state(failed), here.state(succeeded)] == ["failed", "succeeded"]


def test_a_secret_that_reads_like_one_of_our_own_words_breaks_nothing(here: Stage) -> None:
    here.client.put("/api/v1/secrets/vision/hub", json={"value": "metrics"})
    job_id = here.running(**NAMED)
    here.post(job_id, records=[metric(1, 0, loss=1.0), line(1, "the metrics")])
    assert here.client.get(f"/api/v1/jobs/{job_id}/logs").json()["items"][0]["line"] == "the ***"


def test_neither_the_database_nor_its_rows_moved_about_give_a_value(here: Stage) -> None:
    stored = b"".join(p.read_bytes() for p in here.home.glob("ringleader.db*"))
    assert VALUE.encode() not in stored
    assert (here.home / "secrets.key").stat().st_mode & 0o777 == 0o600
    here.client.post("/api/v1/projects", json={"name": "eves"})
    with here.control.store.write() as session:
        session.execute(update(Secret).values(project="eves"))
    job_id = here.submit(project="eves", secrets={"X": "hub"})
    here.tick()
    assert (job_id, 1) not in here.cluster.alive


def test_a_job_can_name_the_secrets_of_its_own_project_only(here: Stage) -> None:
    for changes in ({"secrets": {"HF_TOKEN": "hub"}}, {**NAMED, "secrets": {"A": "none"}}):
        for query in ("", "?dry_run=true"):
            answer = here.client.post(f"/api/v1/jobs{query}", json={**SPEC, **changes})
            assert answer.status_code == 422
            assert answer.json()["errors"][0]["pointer"] in ("/secrets/HF_TOKEN", "/secrets/A")


def test_an_attempt_without_its_secret_fails_and_says_which(here: Stage) -> None:
    job_id = here.submit(**NAMED)
    assert here.client.delete("/api/v1/secrets/vision/hub").status_code == 204
    here.tick(3)
    job = here.job(job_id)
    assert (job["state"], job["reason"]["code"]) == ("failed", "secret_missing")
    assert "'hub'" in job["reason"]["message"]
    assert here.cluster.starts == []


def test_operators_write_submitters_use_and_viewers_see_nothing(here: Stage) -> None:
    who = {role: here.user(role, vision=role) for role in ("viewer", "submitter", "operator")}
    put = {r: c.put("/api/v1/secrets/vision/new", json={"value": "123456"}) for r, c in who.items()}
    assert {r: a.status_code for r, a in put.items()} == {"viewer": 403, "submitter": 403, "operator": 200}
    seen = {r: len(c.get("/api/v1/secrets").json()["items"]) for r, c in who.items()}
    assert seen == {"viewer": 0, "submitter": 2, "operator": 2}
    assert here.user("eve").put("/api/v1/secrets/vision/new", json={"value": "123456"}).status_code == 404


@pytest.mark.parametrize(
    "body", [{"value": "short"}, {"value": 5}, {"valu": VALUE}, [VALUE], {"value": VALUE, "a": 1}]
)
def test_a_refused_value_is_not_told_back(here: Stage, body: object) -> None:
    answer = here.client.put("/api/v1/secrets/vision/hub", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_secret")
    assert VALUE not in answer.text
    assert "short" not in json.dumps(answer.json()["errors"])


@pytest.mark.parametrize("body", ['{"value": "%s", "value": "%s"}', '{"%s": 1, "%s": 2}'])
def test_a_value_that_is_given_twice_is_not_told_back(here: Stage, body: str) -> None:
    as_json = {"Content-Type": "application/json"}
    answer = here.client.put("/api/v1/secrets/vision/hub", content=body % (VALUE, VALUE), headers=as_json)
    assert (answer.status_code, answer.json()["code"]) == (422, "key_twice")
    assert VALUE not in answer.text


def test_a_variable_comes_from_one_place() -> None:
    with pytest.raises(SpecInvalid, match="A is in both env and secrets"):
        JobSpec.parse({**SPEC, "env": {"A": "1"}, "secrets": {"A": "hub"}})


@pytest.mark.parametrize(
    "left", [b"", b"\0" * 44, b"MDEyMzQ1Njc4OWFiY2Rl", b"x" * 43 + b"\n", b"?" * 43 + b"="]
)
def test_no_token_is_ever_derived_from_a_key_that_a_power_cut_has_torn(here: Stage, left: bytes) -> None:
    key = here.home / "secrets.key"
    key.write_bytes(left)
    job_id = here.submit(**NAMED)
    here.tick(2)
    assert (job_id, 1) not in here.cluster.alive, "its tokens would be anybody's"
    forged = hmac.new(left.strip(), f"ingest {job_id} 1".encode(), hashlib.sha256).hexdigest()
    assert ask(here, job_id, forged).status_code == 401
    with pytest.raises(SecretsKeyTorn, match="Restore the file from a backup") as refused:
        stage(here.home)
    assert str(key) in refused.value.message
    assert key.read_bytes() == left, "a new key in its place would lock every secret up for ever"


def test_the_key_is_whole_on_disk_before_its_name_is_there(tmp_path: Path) -> None:
    traced = subprocess.run(
        [sys.executable, "-c", WRITES, str(tmp_path)], capture_output=True, text=True, check=True
    )
    for name in ("once", "over"):
        words = [word for word in traced.stdout.split() if word.startswith(name)]
        assert words == [f"{name}:fsync-file", f"{name}:named", f"{name}:fsync-folder"]
        assert (tmp_path / name).read_text() == name
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once", "over"]
    write_once(tmp_path / "once", "another")
    assert (tmp_path / "once").read_text() == "once", "who was first holds"


WRITES = """
import os, stat, sys
from pathlib import Path
from ringleader.files import write_once, write_over

at = ""
def heard(event, args):
    if event in ("os.link", "os.rename") and at:
        print(f"{at}:named")

sys.addaudithook(heard)
kept = os.fsync
def fsync(descriptor):
    print(f"{at}:fsync-" + ("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"))
    kept(descriptor)

os.fsync = fsync
for at, write in (("once", write_once), ("over", write_over)):
    write(Path(sys.argv[1]) / at, at)
"""
