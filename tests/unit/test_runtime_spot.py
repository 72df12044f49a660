"""Spot notices of three clouds, from a stand-in for their metadata that answers as their documentation says."""

from collections.abc import Callable

import httpx
import pytest

from ringleader.runtime.clouds import CLOUDS, Notice
from ringleader.runtime.clouds.notice import Cloud
from ringleader.runtime.spot import NotDrained, awaited, drained

NOW = 1_795_262_400.0  # 2026-11-21 12:00:00 UTC
Answer = Callable[[httpx.Request], httpx.Response]


class Aws:
    """Refuses who has no token of its own, and forgets the first one."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.leaves = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            assert request.url.path == "/latest/api/token"
            assert int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
            self.tokens.append(f"t{len(self.tokens)}")
            return httpx.Response(200, text=self.tokens[-1])
        if request.headers.get("X-aws-ec2-metadata-token") not in self.tokens[-1:]:
            return httpx.Response(401)
        assert request.url.path == "/latest/meta-data/spot/instance-action"
        if not self.leaves:
            return httpx.Response(404)
        return httpx.Response(200, json={"action": "terminate", "time": "2026-11-21T12:02:00Z"})


class Gcp:
    def __init__(self) -> None:
        self.leaves = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("Metadata-Flavor") != "Google":
            return httpx.Response(403)
        assert request.url.path == "/computeMetadata/v1/instance/preempted"
        return httpx.Response(200, text="TRUE" if self.leaves else "FALSE\n")


class Azure:
    """Tells a scale set's machines of each other's events."""

    def __init__(self) -> None:
        self.leaves = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.headers.get("Metadata") != "true" or "api-version" not in request.url.params:
            return httpx.Response(400)
        if request.url.path == "/metadata/instance/compute/name":
            return httpx.Response(200, text="node_7")
        assert request.url.path == "/metadata/scheduledevents"
        events = [
            {"EventType": "Preempt", "Resources": ["node_8"], "NotBefore": "Sat, 21 Nov 2026 12:00:10 GMT"},
            {"EventType": "Freeze", "Resources": ["node_7"], "NotBefore": "Sat, 21 Nov 2026 12:00:20 GMT"},
        ]
        mine = {"EventType": "Preempt", "Resources": ["node_7"], "NotBefore": "Sat, 21 Nov 2026 12:00:30 GMT"}
        return httpx.Response(200, json={"Events": [*events, mine] if self.leaves else events})


def asking(name: str, answer: Answer) -> Cloud:
    return CLOUDS[name](httpx.Client(base_url="http://metadata", transport=httpx.MockTransport(answer)))


@pytest.mark.parametrize(
    ("name", "stand_in", "left_s"), [("aws", Aws, 120), ("gcp", Gcp, 30), ("azure", Azure, 30)]
)
def test_a_machine_stays_until_its_own_cloud_says_when_it_goes(
    name: str, stand_in: type[Aws] | type[Gcp] | type[Azure], left_s: float
) -> None:
    there = stand_in()
    cloud = asking(name, there)
    assert [cloud.notice(NOW), cloud.notice(NOW)] == [None, None]
    there.leaves = True
    found = cloud.notice(NOW)
    assert found is not None
    assert (found.at - NOW, bool(found.why)) == (left_s, True)


def test_a_token_that_the_cloud_has_forgotten_is_renewed() -> None:
    there = Aws()
    cloud = asking("aws", there)
    assert cloud.notice(NOW) is None
    there.tokens.append("another")
    assert cloud.notice(NOW) is None
    assert there.tokens == ["t0", "another", "t2"]


def test_every_cloud_is_known_by_name_and_asked_where_it_usually_is() -> None:
    assert {name: cloud.METADATA.startswith("http://") for name, cloud in CLOUDS.items()} == {
        "aws": True, "azure": True, "gcp": True,
    }  # fmt: skip


def test_a_cloud_without_an_answer_is_asked_on_and_said_once_a_minute() -> None:
    answers = [httpx.Response(500)] * 61 + [httpx.Response(200, text="TRUE")]
    said: list[str] = []
    paused: list[float] = []
    found = awaited(asking("gcp", lambda request: answers.pop(0)), said.append, paused.append)
    assert isinstance(found, Notice)
    assert (len(said), sum(paused)) == (1, 61)


def test_ray_is_told_until_it_has_accepted() -> None:
    refusals = [ConnectionError("away"), NotDrained("busy")]
    said: list[str] = []

    def drain() -> None:
        if refusals:
            raise refusals.pop(0)

    drained(drain, said.append, lambda _: None)
    assert (refusals, len(said)) == ([], 2)
