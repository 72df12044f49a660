"""Checkpoints are read back equal, at any number of writers, and never half."""

import errno
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from ringleader.checkpoint.committer import CheckpointMade, Committer
from ringleader.checkpoint.export import weights_of
from ringleader.checkpoint.folder import MANIFEST, Folder
from ringleader.checkpoint.manifest import CheckpointPosition, CheckpointUnreadable, Manifest, SavedPart
from ringleader.checkpoint.parts import CheckpointPart
from ringleader.checkpoint.snapshot import Snapshot, newest, read

PLACES = ("state-0.pkl", "names-0.json", "state-0-1-of-2.safetensors", "state-0-2-of-2.safetensors", MANIFEST)


def name_at(step: int) -> str:
    return at(step).name


def at(step: int) -> CheckpointPosition:
    return CheckpointPosition(step, step, 1, 4)


def make_state() -> dict[str, Any]:
    """A trained model's state with all that is odd: a tied weight, an empty tensor, halves, numbers, a set."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 3))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(8, 30)).sum().backward()
    optimizer.step()
    return {
        "models": [net.state_dict()],
        "tied": net[0].weight.detach(),
        "optimizers": [optimizer.state_dict()],
        "halves": torch.arange(5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 4),
        "across": torch.arange(6.0).reshape(2, 3).T,
        "complex": torch.tensor([1 + 2j]),
        "rest": {"step": 7, "names": {"a", "b"}, "loss": None},
    }


def save(folder: Folder, state: Any, *, step: int = 7, writers: int = 2) -> str:
    name = name_at(step)
    pieces = [
        piece
        for writer in range(writers)
        for piece in Snapshot(state, CheckpointPart(writer=writer, writers=writers)).write(folder, name)
    ]
    folder.commit(name, Manifest(at(step), tuple(pieces), {"name": "job"}))
    return name


def assert_equal(found: Any, state: Any) -> None:
    if isinstance(state, torch.Tensor):
        assert found.dtype == state.dtype
        assert torch.equal(found, state)
    elif isinstance(state, dict):
        assert sorted(found) == sorted(state)
        for key in state:
            assert_equal(found[key], state[key])
    elif isinstance(state, list):
        assert len(found) == len(state)
        for one, other in zip(found, state, strict=True):
            assert_equal(one, other)
    else:
        assert found == state


@pytest.mark.parametrize("writers", [1, 2, 3, 40])
def test_a_state_comes_back_equal_from_any_number_of_writers(tmp_path: Path, writers: int) -> None:
    folder, state = Folder(str(tmp_path)), make_state()
    found = read(folder, save(folder, state, writers=writers))
    assert_equal(found.states, [state])
    assert found.manifest.spec == {"name": "job"}


@pytest.mark.parametrize("writers", [1, 3])
def test_the_weights_are_exported_under_their_names(tmp_path: Path, writers: int) -> None:
    folder, state = Folder(str(tmp_path)), make_state()
    name = save(folder, state, writers=writers)
    assert_equal(load(exported(folder, name)), dict(sorted(state["models"][0].items())))


def exported(folder: Folder, name: str) -> bytes:
    """The weights file of a checkpoint."""
    weights = weights_of(folder.place_of(name))
    with closing(weights):
        content = b"".join(weights.chunks())
    assert len(content) == weights.size_bytes
    return content


def test_an_export_holds_a_chunk_at_a_time_and_reads_no_skeleton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = Folder(str(tmp_path)), name_at(7)
    models = [{f"w{n}": torch.full((250,), float(n)) for n in range(40)}]
    state = {"models": models, "moments": [torch.zeros(1000) for _ in range(40)]}
    pieces = Snapshot(state, CheckpointPart()).write(folder, name)
    folder.commit(name, Manifest(at(7), tuple(pieces), {}))
    (tmp_path / name / CheckpointPart().skeleton).unlink()
    whole = exported(folder, name)
    monkeypatch.setattr("ringleader.checkpoint.export.CHUNK_BYTES", 100)
    with closing(weights_of(folder.place_of(name))) as weights:
        chunks = weights.chunks()
        head = next(chunks)
        shutil.rmtree(tmp_path / name)  # it was the oldest: another one has come
        sizes = [len(chunk) for chunk in chunks]
    assert (len(sizes), max(sizes), len(head) + sum(sizes)) == (400, 100, len(whole))


def test_a_byte_that_was_changed_is_found_before_anything_is_handed_out(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    name = save(folder, make_state(), writers=1)
    file = tmp_path / name / CheckpointPart().tensors
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointUnreadable, match="have changed"):
        weights_of(folder.place_of(name))
    handed: list[int] = []
    with closing(weights_of(folder.place_of(name), check_s=0)) as late:
        with pytest.raises(CheckpointUnreadable, match="have changed"):
            handed.extend(map(len, late.chunks()))
        assert 0 < sum(handed) < late.size_bytes, "no whole file was handed out"
    content[:8] = (1 << 60).to_bytes(8, "little")
    file.write_bytes(content)
    with pytest.raises(CheckpointUnreadable, match="have changed"):
        weights_of(folder.place_of(name))


def test_of_several_states_the_one_that_updates_a_weight_has_its_value(tmp_path: Path) -> None:
    folder, old, new = Folder(str(tmp_path)), torch.zeros(2), torch.ones(2)
    models = [{"a": old, "b": old + 5}, {"c": old}]
    states = [{"models": models}, {"models": [{"a": new}, {}]}]
    pieces = [
        piece
        for number, state in enumerate(states)
        for piece in Snapshot(state, CheckpointPart(state=number, states=2)).write(folder, name_at(7))
    ]
    folder.commit(name_at(7), Manifest(at(7), tuple(pieces), {}))
    assert_equal(load(exported(folder, name_at(7))), {"0.a": new, "0.b": old + 5, "1.c": old})


def test_a_harmed_checkpoint_is_not_exported(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    name = save(folder, make_state())
    (tmp_path / name / PLACES[2]).write_bytes(b"")
    with pytest.raises(CheckpointUnreadable, match="has 0 bytes"):
        weights_of(folder.place_of(name))


def test_writers_share_the_bytes() -> None:
    state = {"layers": [torch.zeros(1000) for _ in range(8)]}
    sizes = [Snapshot(state, CheckpointPart(writer=w, writers=4)).size_bytes for w in range(4)]
    assert sizes == [8000] * 4


def test_a_snapshot_keeps_the_state_of_its_moment(tmp_path: Path) -> None:
    folder, weight = Folder(str(tmp_path)), torch.zeros(10)
    snapshot = Snapshot({"weight": weight}, CheckpointPart())
    weight.add_(1)
    pieces = snapshot.write(folder, name_at(1))
    folder.commit(name_at(1), Manifest(at(1), tuple(pieces), {}))
    assert torch.equal(read(folder, name_at(1)).states[0]["weight"], torch.zeros(10))


def test_a_tied_tensor_is_written_once() -> None:
    weight = torch.zeros(100)
    assert Snapshot({"a": weight, "b": weight}, CheckpointPart()).size_bytes == weight.nbytes


@pytest.mark.parametrize("file", PLACES)
@pytest.mark.parametrize("harm", ["gone", "torn", "changed"])
def test_a_harmed_checkpoint_is_named_and_passed_over(tmp_path: Path, file: str, harm: str) -> None:
    folder, state = Folder(str(tmp_path)), make_state()
    old = save(folder, state, step=5)
    new = save(folder, state, step=6)
    path = tmp_path / new / file
    content = path.read_bytes()
    middle = len(content) // 2
    match harm:
        case "gone":
            path.unlink()
        case "torn":
            path.write_bytes(content[:middle])
        case _:
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    found, skipped = newest(folder)
    assert found is not None
    assert found.place.endswith(old)
    gone_whole = file == MANIFEST and harm == "gone"
    assert [new in error.message for error in skipped] == ([] if gone_whole else [True])


def test_a_checkpoint_of_another_job_is_named_and_passed_over(tmp_path: Path) -> None:
    mine, other = Folder(str(tmp_path / "job_a")), Folder(str(tmp_path / "job_b"))
    for folder, step in ((mine, 5), (other, 6)):
        pieces = Snapshot(make_state(), CheckpointPart()).write(folder, name_at(step))
        folder.commit(name_at(step), Manifest(at(step), tuple(pieces), {}, folder.job))
    shutil.copytree(tmp_path / "job_b" / name_at(6), tmp_path / "job_a" / name_at(6))
    found, (error,) = newest(mine)
    assert found is not None
    assert found.place.endswith(name_at(5))
    assert "it belongs to job job_b" in error.message


def test_a_manifest_of_another_step_is_named_and_passed_over(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    names = [save(folder, make_state(), step=step) for step in (5, 6)]
    shutil.copy(tmp_path / names[0] / MANIFEST, tmp_path / names[1] / MANIFEST)
    found, (error,) = newest(folder)
    assert found is not None
    assert found.place.endswith(names[0])
    assert f"its manifest is that of {names[0]}" in error.message


def test_without_its_manifest_there_is_no_checkpoint(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    Snapshot(make_state(), CheckpointPart()).write(folder, name_at(1))
    assert folder.names() == []
    assert newest(folder) == (None, [])


def test_a_manifest_of_a_later_format_is_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    name = save(folder, make_state())
    path = tmp_path / name / MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointUnreadable, match="format 2"):
        read(folder, name)


def test_the_newest_are_kept_and_older_remains_removed(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    names = [save(folder, {"w": torch.zeros(3)}, step=step) for step in (1, 20, 300, 4000)]
    unfinished = [name_at(step) for step in (2, 5000)]
    for name in unfinished:
        Snapshot({"w": torch.zeros(3)}, CheckpointPart()).write(folder, name)
    assert sorted(folder.thin_out(2)) == [names[0], unfinished[0], names[1]]
    assert folder.names() == [names[3], names[2]]
    assert sorted(p.name for p in tmp_path.iterdir()) == [names[2], names[3], unfinished[1]], (
        "one that is being written stays"
    )


def commit_at(folder: Folder, step: int, *, attempt: int, keep: int) -> CheckpointMade:
    position = CheckpointPosition(step, step, attempt, 1)
    committer = Committer(folder, keep=keep, spec={})
    pieces = tuple(Snapshot({"w": torch.zeros(3)}, CheckpointPart()).write(folder, position.name))
    committer.add(SavedPart(position, 0, 1, pieces, 0.0))
    committed = committer.settle(step)
    assert committed is not None
    return committed


@pytest.mark.parametrize(("keep", "left"), [(1, [600]), (2, [600, 500])])
def test_what_an_attempt_had_to_pass_over_takes_the_place_of_none_that_can_be_read(
    tmp_path: Path, keep: int, left: list[int]
) -> None:
    folder = Folder(str(tmp_path))
    for step in (400, 500, 1000):
        commit_at(folder, step, attempt=1, keep=3)
    harmed = tmp_path / CheckpointPosition(1000, 1000, 1, 1).name
    next(harmed.glob("*.safetensors")).write_bytes(b"")
    found, _ = newest(folder)
    assert found is not None
    assert found.manifest.position.step == 500
    committed = commit_at(folder, 600, attempt=2, keep=keep)
    assert harmed.name in committed.removed
    assert [int(name.split("-")[1]) for name in folder.names()] == left
    found, passed_over = newest(folder)
    assert found is not None
    assert (found.manifest.position.step, passed_over) == (600, [])
    assert harmed.exists(), "somebody may still want to look at it"
    assert harmed.name in commit_at(folder, 1100, attempt=2, keep=1).removed
    assert not harmed.exists()


def test_a_file_that_finds_no_room_leaves_none_behind_that_takes_some(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    folder = Folder(str(tmp_path), chunk_bytes=8, rest=full)
    with pytest.raises(OSError, match="no space left"):
        folder.write(name_of(1), "state-0-1-of-1.safetensors", bytes(64))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_of_two_checkpoints_of_one_step_the_later_generation_has_finished_more(tmp_path: Path) -> None:
    """Behind the step that the first holds an evaluation was finished, and then everybody paused."""
    folder, positions = (
        Folder(str(tmp_path)),
        [CheckpointPosition(500, 500 + more, 1, 9 + more) for more in (0, 1)],
    )
    committer = Committer(folder, keep=1, spec={})
    for position in positions:
        pieces = tuple(Snapshot({"w": torch.zeros(3)}, CheckpointPart()).write(folder, position.name))
        committer.add(SavedPart(position, 0, 1, pieces, 0.0))
    committed = committer.settle(500)
    assert committed is not None
    assert committed.manifest.position == positions[1]
    assert committer.settle(500) is None
    folder.commit(positions[0].name, Manifest(positions[0], (), {}))
    assert folder.names() == [positions[1].name, positions[0].name]
    assert list(folder.thin_out(1)) == [positions[0].name]


def test_a_checkpoint_exists_though_old_ones_cannot_be_removed_and_the_next_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(str(tmp_path))
    for step in (1, 2):
        commit_at(folder, step, attempt=1, keep=2)

    def refuse(_place: str) -> None:
        raise OSError("503 slow down")

    with monkeypatch.context() as patch:
        patch.setattr(folder, "_fs", Refusing(folder._fs, refuse))
        committed = commit_at(folder, 3, attempt=1, keep=1)
    assert committed.manifest.position.step == 3
    assert (committed.removed, committed.not_removed) == ((name_of(1),), "OSError: 503 slow down")
    assert folder.names() == [name_of(3), name_of(2)], "what was told as removed is no checkpoint"
    committed = commit_at(folder, 4, attempt=1, keep=1)
    assert (sorted(committed.removed), committed.not_removed) == ([name_of(n) for n in (1, 2, 3)], "")
    assert [path.name for path in tmp_path.iterdir()] == [name_of(4)]


def name_of(step: int) -> str:
    return CheckpointPosition(step, step, 1, 1).name


class Refusing:
    """A file system that removes no folder."""

    def __init__(self, inner: Any, delete_dir: Callable[[str], None]) -> None:
        self._inner = inner
        self.delete_dir = delete_dir

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_attempt_that_was_replaced_sets_nothing_aside_of_a_later_one(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    for attempt, step in ((1, 500), (2, 1000), (1, 600)):
        committed = commit_at(folder, step, attempt=attempt, keep=1)
    assert folder.names() == [
        CheckpointPosition(step, step, attempt, 1).name for attempt, step in ((2, 1000), (1, 600))
    ]
    assert committed.removed == ()


def test_an_unknown_file_system_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="gopher://"):
        Folder("gopher://place")
