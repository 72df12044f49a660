"""Completion by the shell: the scripts in the shells themselves, and the jobs that are offered."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from control_plane import URL as CONTROL
from control_plane import stage
from fake_api import TOKEN, URL, FakeApi, job_id, job_view
from test_api_sweeps import SWEEP
from test_cli_access import Inside

from ringleader.cli.main import main
from ringleader.cli.output import CommandSession
from ringleader.cli.sweeps import sweeps
from ringleader.cli.terminal.completion import SWEEP_NAME, KnownName, known_jobs, known_sweeps
from ringleader.client import Client

TYPED = {
    # What the shell itself would set and call behind TAB.
    "bash": """
        eval "$SCRIPT"
        COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        _ringleader_completion ringleader
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        autoload -Uz compinit && compinit -D -u
        eval "$SCRIPT"
        _describe() {{ print -rl -- $completions_with_descriptions }}
        compadd() {{ print -rl -- $completions }}
        words=({words}); CURRENT=$#words
        _ringleader_completion
    """,
    "fish": """
        echo "$SCRIPT" | source
        complete -C "{words}"
    """,
}
OPTIONS = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """With a `ringleader` on PATH, and no control plane."""
    command = tmp_path / "ringleader"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ringleader.cli.main "$@"\n')
    command.chmod(0o755)
    given = {name: value for name, value in os.environ.items() if not name.startswith("RINGLEADER_")}
    path = f"{tmp_path}:{os.environ['PATH']}"
    return given | {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}


def completed(
    shell: str, words: str, environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What the shell offers behind these words, without the explanations beside."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    assert main(["completion", shell]) == 0
    environ["SCRIPT"] = capsys.readouterr().out
    command = [shell, *OPTIONS[shell], "-c", TYPED[shell].format(words=words)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition("\t")[0].partition(":")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", TYPED)
def test_a_shell_completes_commands_by_the_script_that_is_printed_for_it(
    shell: str, environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(shell, "ringleader des", environ, capsys) == ["describe"]


def test_without_a_control_plane_nothing_is_offered_and_nothing_said(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed("bash", "ringleader describe di", environ, capsys) == []


def offered(incomplete: str, kind: KnownName, session: CommandSession) -> list[str]:
    context = click.Context(click.Command("describe"), obj=session)
    parameter = click.Argument(["job"])
    return [item.value for item in kind.shell_complete(context, parameter, incomplete)]


def test_jobs_are_completed_by_name_and_by_id() -> None:
    api = FakeApi(jobs=[job_view(1), job_view(2), job_view(3, name="cifar"), job_view(4, name="jets")])
    session = CommandSession(lambda: Client(URL, TOKEN, transport=api))
    patient = KnownName(known_jobs, "j", deadline_s=60)
    assert offered("", patient, session) == ["digits-1", "digits-2", "cifar", "jets"]
    assert offered("dig", patient, session) == ["digits-1", "digits-2"]
    assert offered("j", patient, session) == [job_id(1), job_id(2), job_id(3), "jets", job_id(4)]
    assert offered("x", patient, session) == []


def test_sweeps_are_completed_by_name_and_by_id_where_a_command_asks_for_one(tmp_path: Path) -> None:
    here = stage(tmp_path / "home")
    token = (here.home / "token").read_text()

    def connect() -> Client:
        return Client(CONTROL, token, transport=Inside(here), patience_s=0)

    with connect() as client:
        ids = [client.sweep({**SWEEP, "name": name}).id for name in ("rates", "sizes")]
    session, patient = CommandSession(connect), KnownName(known_sweeps, "s", deadline_s=60)
    assert offered("", patient, session) == ["sizes", "rates"]
    assert offered("r", patient, session) == ["rates"]
    assert offered("s", patient, session) == ["sizes", ids[1], ids[0]]
    for command in ("show", "pause", "resume", "cancel"):
        (argument,) = (one for one in sweeps.commands[command].params if isinstance(one, click.Argument))
        assert argument.type is SWEEP_NAME


def test_what_a_shell_would_read_as_more_than_a_word_is_never_offered() -> None:
    api = FakeApi(jobs=[job_view(1, name="digits$(reboot)"), job_view(2, name="digits;reboot")])
    session = CommandSession(lambda: Client(URL, TOKEN, transport=api))
    assert offered("digits", KnownName(known_jobs, "j", deadline_s=60), session) == []


def test_a_control_plane_that_does_not_answer_in_time_is_not_waited_for() -> None:
    answer = threading.Event()

    def connect() -> Client:
        answer.wait(60)
        raise AssertionError

    assert offered("", KnownName(known_jobs, "j", deadline_s=0.01), CommandSession(connect)) == []
    answer.set()
