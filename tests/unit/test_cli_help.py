"""The help of the command line: every command in its section, every summary whole, every option explained."""

import click
import pytest

from ringleader.cli.main import cli, main

MOST_COLUMNS = 80


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in group.commands.items():
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def test_the_help_lists_every_command_once_with_its_whole_summary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(MOST_COLUMNS))
    for path in ((), *(path for path, command in commands(cli) if isinstance(command, click.Group))):
        assert main([*path, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].islower()]
        for name in (found[-1] for found, _ in commands(cli) if found[:-1] == path):
            assert listed.count(name) == 1, (path, name)
        assert not [line for line in lines if line.endswith("...") and "Usage" not in line]
        assert max(map(len, lines)) <= MOST_COLUMNS


@pytest.mark.parametrize(
    ("path", "command"), commands(cli), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_has_a_sentence_and_every_option_an_explanation(
    path: tuple[str, ...], command: click.Command
) -> None:
    summary = (command.help or "").partition("\n")[0]
    assert summary[:1].isupper(), path
    assert len(summary) <= 70, path
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == [], path
