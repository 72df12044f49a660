"""Control planes over one database work over one home folder, or not at all."""

import threading
from pathlib import Path

import control_plane
import pytest
from control_plane import Stage, stage

from ringleader_api.store import OtherHome


@pytest.fixture
def one(tmp_path: Path, on_postgres: None) -> Stage:
    return stage(tmp_path / "shared")


def beside(one: Stage, home: Path) -> Stage:
    """Another control plane over the same database."""
    return stage(home, database_url=one.control.settings.database_url)


def test_another_over_the_same_folder_starts_wherever_it_is_mounted(one: Stage, tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(one.home)
    assert beside(one, tmp_path / "mounted").client.get("/api/v1/version").status_code == 200


@pytest.mark.parametrize("named", [False, True])
def test_one_over_another_folder_does_not_and_says_which_and_why(
    one: Stage, tmp_path: Path, named: bool
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    if named:
        (other / "home_id").write_text("somebody-elses\n")
    with pytest.raises(OtherHome, match="mount it here") as refused:
        beside(one, other)
    assert str(other) in str(refused.value)
    assert [p.name for p in other.iterdir()] == (["home_id"] if named else []), "it has left nothing there"
    (other / "home_id").write_text((one.home / "home_id").read_text())  # as the hint says
    beside(one, other)


def test_two_that_start_at_once_over_a_new_database_agree(tmp_path: Path, on_postgres: None) -> None:
    url = control_plane.Database.of(tmp_path)
    gate, made = threading.Barrier(2), []

    def start() -> None:
        gate.wait(30)
        made.append(stage(tmp_path / "shared", database_url=url))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 2
    beside(made[0], tmp_path / "shared")


def test_the_database_in_the_home_needs_no_name(tmp_path: Path) -> None:
    stage(tmp_path)
    assert not (tmp_path / "home_id").exists()
