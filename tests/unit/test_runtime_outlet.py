"""The end of an attempt reaches the control plane whatever the training function and the disk leave behind."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.ray_home import IngestServer

from ringleader.elastic.instructions import End
from ringleader.runtime.messages import Launch
from ringleader.runtime.outlet import Outlet
from ringleader.spec import JobSpec

SUCCEEDED = End("succeeded")


@pytest.fixture
def server() -> Iterator[IngestServer]:
    server = IngestServer()
    yield server
    server.close()


def open_outlet(server: IngestServer, home: Path, **debug: Any) -> Outlet:
    launch = Launch(
        job_id="job_a",
        attempt=1,
        spec=JobSpec.parse({"name": "a", "entrypoint": "m:f", "debug": debug}),
        package=None,
        ingest_url=server.url,
        ingest_token="secret",
        home=home,
    )
    return Outlet(launch, lambda: None)


def finished(**changes: Any) -> dict[str, Any]:
    times = dict.fromkeys(("wall_s", "compute_s", "exposed_s", "idle_s", "recovery_s"), 0.0)
    return {
        "steps": 3,
        "samples": 24,
        "loss": 0.5,
        "scores": {},
        "generations": 1,
        "reproducible": True,
        "reproducible_why": "",
        "digest": "ab" * 32,
        **times,
        **changes,
    }


def test_a_score_that_is_no_number_is_left_out_and_named_in_the_log(server: IngestServer, tmp_path: Path):
    outlet = open_outlet(server, tmp_path)
    outlet.outcome(SUCCEEDED, finished(scores={"accuracy": 0.9, "bad": math.nan, "worse": -math.inf}))
    assert outlet.poster.drained(10)
    told = server.outcome()
    assert told is not None
    assert (told["outcome"], told["result"]["scores"]) == ("succeeded", {"accuracy": 0.9})
    assert [line["line"] for line in server.stream("logs")] == [
        "The score 'bad' is nan: it is left out of the result.",
        "The score 'worse' is -inf: it is left out of the result.",
    ]
    outlet.discard()


def test_an_outcome_that_cannot_be_written_is_a_platform_error(server: IngestServer, tmp_path: Path):
    outlet = open_outlet(server, tmp_path)
    outlet.outcome(SUCCEEDED, finished(wall_s=math.nan))
    assert outlet.poster.drained(10)
    assert_platform_error(server, "ValueError")
    outlet.discard()


def test_a_ledger_that_cannot_be_finished_is_a_platform_error(server: IngestServer, tmp_path: Path):
    outlet = open_outlet(server, tmp_path, ledger=True)
    (tmp_path / "jobs" / "job_a" / "artifacts").write_text("a file where the artifacts' folder should be")
    outlet.outcome(SUCCEEDED, finished())
    assert outlet.poster.drained(10)
    assert_platform_error(server, "FileExistsError")
    outlet.discard()


def assert_platform_error(server: IngestServer, error: str) -> None:
    (told,) = server.stream("outcome")
    assert (told["outcome"], told["result"], told["reason"]["code"]) == ("failed", None, "platform_error")
    assert error in told["reason"]["message"]
