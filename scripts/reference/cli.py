"""The page of the command line: every command of `ringleader`, with its arguments and options."""

import inspect
from collections.abc import Iterator

import click

from reference.markdown import block, code, page, prose, sentence, table

LEAD = """`-o json` prints output for programs. Errors go to standard error and say what to do."""


def cli_page() -> str:
    from ringleader.cli.main import cli

    context = click.Context(cli, info_name="ringleader")
    codes = inspect.cleandoc(cli.help or "").split("\n\n")[1]
    return page(
        "Command line",
        LEAD,
        prose(" ".join(codes.split())),
        *(_shown(*one) for one in commands(cli, context)),
    )


def commands(
    group: click.Group, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below a group: its full name, itself, and the context that shows it. Groups come before theirs."""
    for name in group.list_commands(context):
        command = group.commands[name]
        if command.hidden:
            continue
        inside = click.Context(command, info_name=name, parent=context)
        yield inside.command_path, command, inside
        if isinstance(command, click.Group):
            yield from commands(command, inside)


def _shown(name: str, command: click.Command, context: click.Context) -> str:
    usage = " ".join((name, *command.collect_usage_pieces(context)))
    parts = [f"## {name}", block(usage, "text"), *_help(command)]
    rows = [_row(option, context) for option in command.params if isinstance(option, click.Option)]
    return "\n\n".join(part for part in (*parts, table(("option", "what it says"), rows)) if part)


def _help(command: click.Command) -> Iterator[str]:
    """The paragraphs of a command's help; one that keeps its lines is shown as it is."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield block(paragraph.removeprefix("\b\n"), "text")
        elif paragraph:
            yield prose(sentence(paragraph))


def _row(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    shown, words = record if record is not None else (", ".join(option.opts), option.help or "")
    return code(shown), prose(sentence(words))
