"""Accounts of the machine for jobs: the operator's table, folders, and files opened with an account's rights alone."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import NOBODY, needs_root, open_folder

from ringleader import accounts
from ringleader.accounts import Account, RunAs, RunAsImpossible, accounts_of, files_as, owner_only

SOMEBODY = Account("nobody", NOBODY, NOBODY)


@needs_root
def test_a_table_names_an_account_for_each_user_or_one_for_all():
    assert accounts_of("") == {}
    assert {user: account.name for user, account in accounts_of("nobody").items()} == {"*": "nobody"}
    table = accounts_of("ada@example.org=daemon, *=nobody,")
    assert {user: account.name for user, account in table.items()} == {
        "ada@example.org": "daemon",
        "*": "nobody",
    }
    assert table["*"] == SOMEBODY


@needs_root
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("no-such-account", "not an account of this machine"),
        ("root", "rights of the stack's owner"),
        ("ada=nobody, ada=daemon", "a user twice"),
    ],
)
def test_a_table_that_gives_a_job_the_owners_rights_or_nobodys_is_refused(table: str, said: str):
    with pytest.raises(RunAsImpossible, match=said):
        accounts_of(table)


def test_only_root_may_give_jobs_other_accounts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RunAsImpossible, match="only root can change"):
        accounts_of("nobody")


@needs_root
def test_a_folder_for_a_job_is_its_accounts_alone_and_what_leads_there_is_the_stacks():
    with open_folder() as base:
        folder = base / "jobs"
        place = folder / "checkpoints" / "job_1"
        for _ in range(2):  # of each worker on the node
            RunAs(SOMEBODY, folder).have(place)
        assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (NOBODY, 0o700)
        assert {(p.stat().st_uid, p.stat().st_mode & 0o777) for p in (folder, place.parent)} == {(0, 0o711)}
        with pytest.raises(RunAsImpossible, match="belongs to another account"):
            RunAs(Account("other", 12345, 12345), folder).have(place)


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o700])
def test_a_folder_below_one_in_which_others_write_or_that_none_may_enter_is_refused(mode: int):
    with open_folder() as base:
        base.chmod(mode)
        with pytest.raises(RunAsImpossible, match="others can write to it, or cannot pass"):
            owner_only(base / "jobs")
        base.chmod(0o755)


@pytest.fixture
def groups() -> Iterator[None]:
    before = os.getgroups()
    yield
    os.setgroups(before)


@needs_root
@pytest.mark.usefixtures("groups")
def test_files_of_an_account_lead_to_nothing_that_it_could_not_reach_itself():
    with open_folder() as base:
        os.setgroups([0])  # as a service manager may leave it: the file is its group's too
        token, its = base / "token", base / "its"
        token.write_text("the owner's")
        token.chmod(0o640)
        its.mkdir()
        os.chown(its, NOBODY, NOBODY)
        (its / "link").symlink_to(token)
        with files_as(SOMEBODY):
            for deed in (
                (its / "link").read_text,
                lambda: (its / "link").write_text("somebody else's"),
                token.unlink,
                (base / "new").touch,
            ):
                with pytest.raises(PermissionError):
                    deed()
            (its / "own").touch()
        assert token.read_text() == "the owner's"
        assert (its / "own").stat().st_uid == NOBODY


@needs_root
def test_the_rights_are_those_of_one_thread_and_come_back(monkeypatch: pytest.MonkeyPatch):
    inside, over = threading.Event(), threading.Event()
    before = os.getgroups(), os.geteuid()
    found: list[str] = []

    def elsewhere() -> None:
        with files_as(SOMEBODY):
            inside.set()
            assert over.wait(30)

    with open_folder() as base:
        base.chmod(0o700)
        (base / "mine").write_text("mine")
        other = threading.Thread(target=elsewhere)
        other.start()
        assert inside.wait(30)
        found.append((base / "mine").read_text())
        over.set()
        other.join()
        with pytest.raises(ValueError, match="of the block"), files_as(SOMEBODY):
            raise ValueError("of the block")
        found.append((base / "mine").read_text())
    assert found == ["mine", "mine"]
    assert (os.getgroups(), os.geteuid()) == before
    monkeypatch.setitem(accounts.SETGROUPS, accounts.platform.machine(), 999_999)
    with pytest.raises(RunAsImpossible, match="cannot change its groups"), files_as(SOMEBODY):
        pytest.fail("it went on with the groups of root")


def test_without_an_account_files_are_this_process_own(tmp_path: Path):
    with files_as(None):
        (tmp_path / "mine").touch()
    assert (tmp_path / "mine").stat().st_uid == os.geteuid()
