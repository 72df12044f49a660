"""Checkpoints on S3, against a server of its own: endpoint and credentials come from the environment."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from moto.server import ThreadedMotoServer
from threaded_cast import ThreadedCast

from ringleader.checkpoint.folder import MANIFEST, Folder
from ringleader.checkpoint.manifest import CheckpointPosition, CheckpointsUnreachable, Manifest
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot, newest
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

BUCKET = "jobs"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def place(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket; the URI of a folder in it."""
    httpx.post(f"{endpoint}/moto-api/reset").raise_for_status()
    httpx.put(f"{endpoint}/{BUCKET}").raise_for_status()
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/checkpoints/job_a"


def save(folder: Folder, step: int, writers: int = 2) -> str:
    position = CheckpointPosition(step, step, attempt=1, generation=1)
    state = {"weights": [torch.full((1000,), float(step)) for _ in range(writers)], "step": step}
    pieces = [
        piece
        for writer in range(writers)
        for piece in Snapshot(state, CheckpointPart(writer=writer, writers=writers)).write(
            folder, position.name
        )
    ]
    folder.check_there(position.name, pieces)
    folder.commit(position.name, Manifest(position, tuple(pieces), {}))
    return position.name


def test_a_checkpoint_on_s3_comes_back_whole(place: str) -> None:
    folder = Folder(place)
    assert newest(folder) == (None, [])
    save(folder, 7)
    found, skipped = newest(folder)
    assert found is not None
    assert (found.states[0]["step"], skipped) == (7, [])
    assert torch.equal(found.states[0]["weights"][1], torch.full((1000,), 7.0))
    assert found.place == f"{place}/step-000000000007-a1-g1"


def test_what_is_torn_on_s3_is_passed_over_and_old_ones_are_removed(place: str, endpoint: str) -> None:
    folder = Folder(place)
    names = [save(folder, step) for step in (1, 2, 3)]
    torn = f"{endpoint}/{BUCKET}/checkpoints/job_a/{names[2]}/{CheckpointPart(writer=1, writers=2).tensors}"
    httpx.put(torn, content=httpx.get(torn).content[:-9]).raise_for_status()
    found, (error,) = newest(folder)
    assert found is not None
    assert found.place.endswith(names[1])
    assert "state-0-2-of-2.safetensors has" in error.message
    assert list(folder.thin_out(2)) == [names[0]]
    assert folder.names() == [names[2], names[1]]
    left = httpx.get(f"{endpoint}/{BUCKET}?list-type=2").text
    assert (names[0] in left, f"{names[1]}/{MANIFEST}" in left) == (False, True)


def test_a_job_begins_with_weights_on_s3(place: str, tmp_path: Path) -> None:
    folder, position = Folder(place), CheckpointPosition(1, 1, attempt=1, generation=1)
    weights = {"weight": torch.full((1, 2), 3.0), "bias": torch.zeros(1)}
    pieces = Snapshot({"models": [weights], "optimizers": []}, CheckpointPart()).write(folder, position.name)
    folder.commit(position.name, Manifest(position, tuple(pieces), {}))
    net = torch.nn.Linear(2, 1)

    def train(session: Session) -> None:
        session.optimizer(torch.optim.SGD(session.model(net).parameters(), lr=0.0))
        for row in session.batches([torch.ones(2)]):
            session.step(net(row).sum())

    spec = {"name": "a", "entrypoint": "a:b", "batch": {"global_size": 1}}
    run_local(JobSpec.parse(spec | {"init_from": folder.place_of(position.name)}), train, tmp_path)
    assert torch.equal(net.weight, weights["weight"])


class Unanswered:
    """A file system that lists its files and hands out none, as behind a network that fails now and then."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_input_stream(self, _path: str) -> Any:
        raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation")


def test_a_checkpoint_that_cannot_be_reached_now_is_not_passed_over(place: str) -> None:
    folder = Folder(place)
    save(folder, 1)
    folder._fs = Unanswered(folder._fs)  # type: ignore[assignment]
    with pytest.raises(CheckpointsUnreachable, match="NETWORK_CONNECTION") as caught:
        newest(folder)
    assert caught.value.code == "platform_error", "the next attempt tries again"


def test_an_attempt_that_cannot_reach_its_checkpoints_ends_for_the_next_one_and_not_as_the_users_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    play = ThreadedCast(two_workers(), begin_again, artifacts=tmp_path, attempt=2, checkpoints=place).play()
    assert (play.outcome, play.reason) == ("failed", "platform_error"), play.message
    assert "cannot be reached" in play.message


def two_workers() -> JobSpec:
    return JobSpec.parse(
        {
            "name": "s3",
            "entrypoint": "m:f",
            "workers": {"min": 2, "max": 2},
            "batch": {"global_size": 8, "logical_shards": 2},
        }
    )


def begin_again(session: Session) -> None:
    net = session.model(torch.nn.Linear(2, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
    for (x,) in session.batches(rows):
        session.step(net(x).mean())
