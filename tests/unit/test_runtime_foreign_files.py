"""What the owner's processes do with files of a job under another account: nothing that the account could not do."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accounts import NOBODY, needs_root, open_folder

from ringleader.accounts import Account, RunAs
from ringleader.checkpoint.folder import MANIFEST, Folder
from ringleader.checkpoint.manifest import CheckpointPosition, SavedPart
from ringleader.runtime.messages import AttemptLaunch, Heartbeat, ProcessIdentity
from ringleader.runtime.records.checkpoints import AttemptCheckpoints
from ringleader.runtime.worker import account_files
from ringleader.runtime.worker.account_files import NotFetched, fetch
from ringleader.spec import JobSpec

pytestmark = needs_root
SPEC = JobSpec.parse({"name": "foreign", "entrypoint": "unit:train"})
NAME = "weights.safetensors"
AT = CheckpointPosition(4, 4, 1, 1)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[AttemptLaunch]:
    with open_folder() as base:
        run_as = RunAs(Account("nobody", NOBODY, NOBODY), base / "jobs")
        launch = AttemptLaunch("job_1", 1, SPEC, None, "", "", tmp_path / "home", run_as=run_as)
        for place in (launch.left.parent, Path(launch.checkpoints)):
            run_as.have(place)
        launch.left.mkdir()
        os.chown(launch.left, NOBODY, NOBODY)
        yield launch


@pytest.fixture
def secret(launch: AttemptLaunch) -> Path:
    """A file of the owner's."""
    path = launch.open_home.parent / "token"
    path.write_text("the owner's")
    path.chmod(0o600)
    return path


def left(launch: AttemptLaunch, content: bytes) -> Path:
    path = launch.left / NAME
    path.write_bytes(content)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o600)
    return path


def test_what_a_job_has_left_is_copied_into_the_home_as_its_owners(launch: AttemptLaunch):
    fetch(launch, NAME)
    assert not launch.artifacts.exists(), "there is nothing yet"
    left(launch, bytes(3 << 20))
    fetch(launch, NAME)
    copy = launch.artifacts / NAME
    assert (copy.stat().st_uid, copy.stat().st_size) == (os.geteuid(), 3 << 20)
    assert [path.name for path in launch.artifacts.iterdir()] == [NAME]
    fetch(replace(launch, run_as=None), "absent")


def test_a_link_or_a_pipe_in_its_place_is_not_followed(launch: AttemptLaunch, secret: Path):
    (launch.left / NAME).symlink_to(secret)
    with pytest.raises(NotFetched, match="cannot read"):
        fetch(launch, NAME)
    (launch.left / NAME).unlink()
    os.mkfifo(launch.left / NAME, 0o666)
    os.chown(launch.left / NAME, NOBODY, NOBODY)
    with pytest.raises(NotFetched, match="is not a plain file"):
        fetch(launch, NAME)
    (launch.left / NAME).unlink()
    launch.left.rmdir()
    launch.left.symlink_to(secret.parent)
    secret.rename(secret.parent / NAME)
    with pytest.raises(NotFetched, match="Permission denied"):
        fetch(launch, NAME)
    assert not (launch.artifacts / NAME).exists()


def test_nothing_is_copied_that_would_fill_the_disk_of_the_home(
    launch: AttemptLaunch, monkeypatch: pytest.MonkeyPatch
):
    left(launch, bytes(100))
    free = SimpleNamespace(free=account_files.SPARE_BYTES + 99)
    monkeypatch.setattr(account_files.shutil, "disk_usage", lambda path: free)
    with pytest.raises(NotFetched, match="no room for the 100 bytes"):
        fetch(launch, NAME)


def committed(launch: AttemptLaunch) -> list[tuple[str, dict[str, Any]]]:
    """What the supervisor tells of a checkpoint that the job's one member has written."""
    folder = Folder(launch.checkpoints)
    piece = folder.write(AT.name, "w0.safetensors", b"weights")
    for path in Path(launch.checkpoints).rglob("*"):
        os.lchown(path, NOBODY, NOBODY)
    told: list[tuple[str, dict[str, Any]]] = []
    checkpoints = AttemptCheckpoints(launch, lambda kind, generation, data: told.append((kind, data)))
    saved = SavedPart(AT, 0, 1, (piece,), 0.1)
    checkpoints.take(Heartbeat("w0", ProcessIdentity(1, "n", "h"), step=9, saved=(saved,)), 9)
    checkpoints.finish()
    return told


def test_a_checkpoint_is_committed_as_the_account_that_wrote_it(launch: AttemptLaunch):
    assert [kind for kind, _ in committed(launch)] == ["checkpoint.saved"]
    files = list(Path(launch.checkpoints).rglob("*"))
    assert MANIFEST in {path.name for path in files}
    assert {path.stat().st_uid for path in files} == {NOBODY}


def test_a_link_in_place_of_a_manifest_has_nothing_of_the_owners_overwritten(
    launch: AttemptLaunch, secret: Path
):
    place = Path(launch.checkpoints) / AT.name
    place.mkdir()
    (place / MANIFEST).symlink_to(secret)
    told = committed(launch)
    # What could not be written goes, and with it the link: at the end of the attempt it is tried again.
    assert [kind for kind, _ in told] == ["checkpoint.failed", "checkpoint.saved"]
    assert "Permission denied" in told[0][1]["why"]
    assert secret.read_text() == "the owner's"
