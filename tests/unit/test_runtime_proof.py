"""The secret of an attempt: drawn once, kept with what its supervisor writes down, and told to members alone."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.ray_home import IngestServer
from test_runtime_outlet import SUCCEEDED, finished, open_outlet

from ringleader.comm.seal import SECRET_BYTES
from ringleader.runtime.messages import spool_of


@pytest.fixture
def server() -> Iterator[IngestServer]:
    server = IngestServer()
    yield server
    server.close()


def test_what_members_prove_that_they_are_with_outlives_a_supervisor_and_is_told_to_nobody(
    server: IngestServer, tmp_path: Path
):
    outlet = open_outlet(server, tmp_path)
    outlet.write()
    returned = open_outlet(server, tmp_path)
    assert len(outlet.secret) == SECRET_BYTES
    assert returned.secret == outlet.secret
    returned.event("generation.formed", 1, {"members": ["w0"]})
    returned.outcome(SUCCEEDED, finished())
    assert returned.poster.drained(60)
    posted = repr(server.records) + repr(server.status)
    assert outlet.secret.hex() not in posted
    assert repr(outlet.secret) not in posted
    folder = spool_of(tmp_path, "job_a", 1)
    assert folder.stat().st_mode & 0o077 == 0
    for one in (outlet, returned):
        one.discard()


def test_each_attempt_has_a_secret_of_its_own_and_none_that_it_is_started_with(
    server: IngestServer, tmp_path: Path
):
    first, second = (open_outlet(server, tmp_path / name) for name in "ab")
    assert first.secret != second.secret
    assert first.secret not in pickle.dumps(first._launch)
    for one in (first, second):
        one.discard()
