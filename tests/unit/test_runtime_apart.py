"""A member under another account, and its actor: what either can do to the other, and how both end."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accounts import NOBODY, open_folder
from readable_python import can_run_as_others, readable_python
from waiting import wait_for

from ringleader.elastic import ParkReport
from ringleader.runtime.messages import Heartbeat, ParkMessage, ProcessIdentity
from ringleader.runtime.worker import account_actor, plain_values
from ringleader.runtime.worker.account_actor import WITHOUT_CHILD, AccountMember

SCRIPT = Path(__file__).parents[1] / "apart_script.py"
TRAINS = """
import os, torch
def train(session):
    {first}
    net = session.model(torch.nn.Linear(2, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for batch in session.batches([{{"x": torch.ones(2)}} for _ in range(8)]):
        session.step(net(batch["x"]).mean())
"""
needs_accounts = pytest.mark.skipif(
    not can_run_as_others(), reason="only root may give jobs accounts of their own"
)


@contextmanager
def acting(program: str) -> "Iterator[subprocess.Popen[str]]":
    """The actor; what its supervisor hears comes on its standard output."""
    with open_folder() as folder, readable_python() as before:
        command = [*before, sys.executable, str(SCRIPT), str(folder), program]
        actor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield actor
        finally:
            actor.kill()
            actor.communicate(timeout=60)


def heard(actor: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert actor.stdout is not None
    return map(json.loads, actor.stdout)


def until(actor: "subprocess.Popen[str]", kind: str) -> dict[str, Any]:
    return next(said for said in heard(actor) if said["kind"] == kind)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@needs_accounts
def test_a_member_under_another_account_trains_and_has_its_secrets():
    first = 'print(os.getuid(), os.environ["HF_TOKEN"], os.environ["HOME"] == os.environ["TMPDIR"])'
    with acting(TRAINS.format(first=first)) as actor:
        said = list(heard_to_the_end(actor))
    by_kind = {one["kind"]: one for one in said}
    assert said[0] == {"kind": "attendance", "busy": True}, "before there is a child"
    pid = by_kind["parked"]["pid"]
    assert (by_kind["parked"]["life"], by_kind["seated"]["generation"]) == (-1, 1)
    # The worker masks its secrets itself.
    assert [
        (one["pid"], one["text"])
        for one in said
        if one["kind"] == "line" and not one["text"].startswith("ringleader: ")
    ] == [(pid, f"{NOBODY} *** True")]
    assert by_kind["ended"] == {"kind": "ended", "end": "finished", "message": "", "generation": 1}


@needs_accounts
def test_a_member_under_another_account_takes_and_gives_indexes_of_files() -> None:
    first = """from ringleader.index_group import joined
    print(joined().take("ab12"))
    joined().give("ab12", bytes([0, 255]))
    print(joined().take("ab12"))"""
    with acting(TRAINS.format(first=first)) as actor:
        said = list(heard_to_the_end(actor))
    lines = [one["text"] for one in said if one["kind"] == "line" and one["text"].startswith(("None", "b'"))]
    assert lines == ["None", repr(bytes([0, 255]))]
    assert {"kind": "index_made", "worker": "w0", "size": 2} in said


@needs_accounts
def test_a_member_under_another_account_hashes_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with acting(TRAINS.format(first="print('hash', hash('a word'))")) as actor:
        said = list(heard_to_the_end(actor))
    anywhere = subprocess.run(
        [sys.executable, "-c", "print('hash', hash('a word'))"], stdout=subprocess.PIPE, text=True, check=True
    )
    assert anywhere.stdout.strip() in [one["text"] for one in said if one["kind"] == "line"]


def heard_to_the_end(actor: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    for said in heard(actor):
        yield said
        if said["kind"] == "ended":
            return


LINES = """import stat, time
    def is_line(number):
        try:
            return stat.S_ISSOCK(os.fstat(number).st_mode)
        except OSError:
            return False
    def outlive(actor):
        while os.path.exists(f"/proc/{{actor}}"):
            time.sleep(0.05)
        os._exit(0)
    lines = [number for number in range(3, 64) if is_line(number)]
    say = lambda told: [os.write(line, told) for line in lines]
    {deed}
    time.sleep(60)"""

FORKS = "actor = os.getppid(); os.fork() or outlive(actor)"
"""Whoever it has forked has its line, and ends once the actor has ended."""


@needs_accounts
@pytest.mark.parametrize(
    ("deed", "why", "status"),
    [
        ("os._exit(3)", "ended with 3", 3),
        ("os.kill(os.getpid(), 9)", "ended with -9", -signal.SIGKILL),
        ("__import__('ctypes').string_at(0)", "ended with -11", -signal.SIGSEGV),
        (f"{FORKS}; os._exit(3)", "ended with 3", 3),
        ("say(b'\\0\\0\\0\\4junk')", "a frame of no kind", WITHOUT_CHILD),
        ("say(b'\\x7f\\xff\\xff\\xff')", "bad message length", WITHOUT_CHILD),
        ("say(b'\\0\\0\\0\\x0bsecrets\\n[7]' * 64)", "more questions at once", WITHOUT_CHILD),
    ],
)
def test_who_ends_or_says_what_no_member_says_is_lost_with_its_actor_which_ends_alike(
    deed: str, why: str, status: int
):
    with acting(TRAINS.format(first=LINES.format(deed=deed))) as actor:
        out, error = actor.communicate(timeout=120)
    assert (actor.returncode, [said for said in out.splitlines() if "ended" in said]) == (
        status,
        [],
    ), error
    assert why in error


@needs_accounts
def test_the_child_ends_with_its_actor():
    with acting(TRAINS.format(first="import time; print(1)") + "    time.sleep(600)\n") as actor:
        child = until(actor, "parked")["pid"]
        assert Path(f"/proc/{child}").stat().st_uid == NOBODY
        actor.send_signal(signal.SIGKILL)
        wait_for("the child's end", lambda: gone(child))


def talker(heard: list[tuple[str, Any]]) -> AccountMember:
    """An actor whose supervisor notes what it hears; it has a child that nobody started."""
    from apart_script import SPEC

    from ringleader.runtime.messages import MemberTask

    supervisor_link: Any = SimpleNamespace(
        parked=lambda park_message: heard.append(("parked", park_message)),
        beat=lambda beat: heard.append(("beat", beat)),
    )
    task = MemberTask("job_1", 1, "w0", "worker", SPEC, Path("a"), Path("s"), "c")
    return AccountMember(task, ProcessIdentity(77, "node", "127.0.0.1", -1), supervisor_link)


def test_who_a_member_is_its_actor_says():
    heard: list[tuple[str, Any]] = []
    actor = talker(heard)
    told: list[Any] = []
    actor._send = told.append  # type: ignore[method-assign]
    actor._begun.set()
    other = ProcessIdentity(1, "another", "10.0.0.1", 5)
    park_message = ParkMessage("w9", other, ParkReport(1, 2, 3, ""))
    for kind, values in (
        ("parked", (park_message,)),
        ("beat", (4, Heartbeat("w9", other, park_message=park_message, step=6))),
    ):
        actor._take(*plain_values.read(plain_values.frame(kind, *values)))
    actor._questions.shutdown(wait=True)
    own = ParkMessage("w0", actor._identity, ParkReport(1, 2, 3, ""))
    assert heard == [("parked", own), ("beat", Heartbeat("w0", actor._identity, park_message=own, step=6))]
    assert told == [("answer", 4, None)]


def test_an_account_that_cannot_run_python_fails_the_attempt_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    if not can_run_as_others():
        pytest.skip("only root may give jobs accounts of their own")
    from apart_script import NOBODY as SOMEBODY

    from ringleader.accounts import RunAs

    actor = talker([])
    with open_folder() as folder:
        own = folder / "own"
        own.mkdir(mode=0o700)
        shutil.copy(sys.executable, own / "python")
        monkeypatch.setattr(account_actor.sys, "executable", str(own / "python"))
        places = {"artifacts": folder / "jobs" / "1" / "a", "scratch": folder / "scratch" / "1-a1"}
        actor._task = replace(
            actor._task,
            run_as=RunAs(SOMEBODY, folder),
            checkpoints=str(folder / "checkpoints" / "1"),
            **places,
        )
        ended = actor.run(None)
    assert (ended.kind, ended.reason) == ("failed", "platform_error")
    assert "cannot start a process under the account nobody: [Errno 13]" in ended.message
    assert "readable by all" in ended.hint
