"""A job's secrets: fetched when they are needed, asked for again while the control plane is away."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from integration.ray_home import IngestServer

from ringleader.runtime.messages import AttemptLaunch, SecretsAnswer
from ringleader.runtime.worker import job_secrets
from ringleader.runtime.worker.job_secrets import SecretCache
from ringleader.spec import JobSpec

SPEC = JobSpec.parse({"name": "n", "entrypoint": "m:f", "secrets": {"HF_TOKEN": "hub"}})


class Api(IngestServer):
    """`held` requests wait for `free`; `missing` says that somebody has deleted the secret."""

    def __init__(self) -> None:
        self.missing = False
        self.asked = 0
        self.free = threading.Event()
        self.free.set()
        super().__init__()

    def answer(self, to: BaseHTTPRequestHandler, status: int, body: object, kind: str = "json") -> None:
        self.asked += 1
        assert self.free.wait(20)
        if self.missing:
            status, body = 404, {"code": "secret_missing", "detail": "there is no secret 'hub'"}
        super().answer(to, status, body, kind)


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    api.secrets = {"HF_TOKEN": "hf_value"}
    yield api
    api.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_secrets, "AGAIN_S", 0.0)


def opened(api: Api, token: str = "secret", url: str = "") -> SecretCache:
    return SecretCache(AttemptLaunch("job", 1, SPEC, None, url or api.url, token, Path("/nowhere")))


def test_they_are_fetched_once(api: Api) -> None:
    here = opened(api)
    assert api.asked == 0, "not before somebody needs them"
    assert [here.open(), here.open()] == [SecretsAnswer({"HF_TOKEN": "hf_value"})] * 2
    assert (api.asked, "hf_value" in repr(here.open())) == (1, False)


def test_while_the_control_plane_is_away_they_are_asked_for_again(api: Api) -> None:
    here = opened(api, url="http://127.0.0.1:9/ingest")
    assert [here.open(), here.open()] == [None, None]
    here._url = api.url.replace("/ingest", "/secrets")
    assert here.open() == SecretsAnswer({"HF_TOKEN": "hf_value"})


def test_one_that_is_missing_is_refused_to_who_begins_but_a_wrong_address_is_not(api: Api) -> None:
    assert opened(api, token="another").open() is None
    api.missing = True
    assert opened(api).open() == SecretsAnswer(refused="there is no secret 'hub'")


def test_one_that_is_missing_for_a_moment_ends_nothing_that_has_begun(api: Api) -> None:
    api.missing = True
    here = opened(api)
    assert [here.open(begun=True), here.open(begun=True)] == [None, None]
    assert here.open() == SecretsAnswer(refused="there is no secret 'hub'")
    api.missing = False
    assert here.open(begun=True) == SecretsAnswer({"HF_TOKEN": "hf_value"}), "no refusal is kept"
    api.missing = True
    assert here.open() == SecretsAnswer({"HF_TOKEN": "hf_value"})


def test_one_thread_waits_for_an_answer_and_all_others_are_free(api: Api) -> None:
    here = opened(api)
    api.free.clear()
    found: list[SecretsAnswer | None] = []
    first = threading.Thread(target=lambda: found.append(here.open()))
    first.start()
    while not here._fetching.locked():
        assert first.is_alive()
    assert [here.open() for _ in range(20)] == [None] * 20
    api.free.set()
    first.join(20)
    assert found == [SecretsAnswer({"HF_TOKEN": "hf_value"})]
