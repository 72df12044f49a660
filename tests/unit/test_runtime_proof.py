"""The secret of an attempt: drawn once, kept with what its supervisor writes down, and told to members alone."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.ray_home import IngestServer
from test_runtime_record_log import SUCCEEDED, finished, open_record_log

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
    record_log = open_record_log(server, tmp_path)
    record_log.write()
    returned = open_record_log(server, tmp_path)
    assert len(record_log.secret) == SECRET_BYTES
    assert returned.secret == record_log.secret
    returned.event("generation.formed", 1, {"members": ["w0"]})
    returned.outcome(SUCCEEDED, finished())
    assert returned.uploader.drained(60)
    posted = repr(server.records) + repr(server.status)
    assert record_log.secret.hex() not in posted
    assert repr(record_log.secret) not in posted
    folder = spool_of(tmp_path, "job_a", 1)
    assert folder.stat().st_mode & 0o077 == 0
    for one in (record_log, returned):
        one.discard()


def test_each_attempt_has_a_secret_of_its_own_and_none_that_it_is_started_with(
    server: IngestServer, tmp_path: Path
):
    first, second = (open_record_log(server, tmp_path / name) for name in "ab")
    assert first.secret != second.secret
    assert first.secret not in pickle.dumps(first._launch)
    for one in (first, second):
        one.discard()
