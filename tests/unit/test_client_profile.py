"""Where the SDK finds the control plane and its token."""

import stat
from pathlib import Path

import pytest

from ringleader.client import profile
from ringleader.client.profile import NoControlPlane, Profile


def test_the_environment_wins_over_the_saved_profile(tmp_path: Path) -> None:
    profile.save(tmp_path, Profile("http://saved:1", "secret"))
    environ = {"RINGLEADER_HOME": str(tmp_path)}
    assert profile.find(environ=environ) == Profile("http://saved:1", "secret")
    assert profile.find(environ={**environ, "RINGLEADER_TOKEN": "other"}).token == "other"
    assert profile.find("http://arg:1", "mine", environ=environ) == Profile("http://arg:1", "mine")


def test_the_saved_token_is_never_sent_elsewhere(tmp_path: Path) -> None:
    profile.save(tmp_path, Profile("http://saved:1", "secret"))
    environ = {"RINGLEADER_HOME": str(tmp_path), "RINGLEADER_URL": "http://elsewhere:1"}
    assert profile.find(environ=environ).token == ""


def test_the_profile_is_readable_by_its_owner_only_and_not_printed(tmp_path: Path) -> None:
    profile.save(tmp_path, Profile("http://saved:1", "secret"))
    assert stat.S_IMODE((tmp_path / "profile.json").stat().st_mode) == 0o600
    assert "secret" not in repr(profile.load(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"url": "x"}', "\x00"])
def test_a_damaged_profile_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(NoControlPlane, match="ringleader up"):
        profile.find(environ={"RINGLEADER_HOME": str(tmp_path)})
