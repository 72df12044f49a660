"""The output of commands: aligned tables for people, JSON for programs, errors as what, to what, what to do."""

import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, TextIO, TypeVar

import click

from ringleader.client import Client, LogLine
from ringleader.errors import RingleaderError

P = ParamSpec("P")
R = TypeVar("R")


PATIENCE_S = 5.0  # somebody is looking at the screen
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, or that change the order of others, instead of being shown; tab and line feed are
left out."""
_BLANKS = str.maketrans("\t\n", "  ")


def connect() -> Client:
    return Client(patience_s=PATIENCE_S)


@dataclass
class CommandSession:
    """The state that all commands share: how to connect, and how to print."""

    connect: Callable[[], Client] = connect
    as_json: bool = False
    opened: list[Client] = field(default_factory=list)

    def choose(self, output: str) -> None:
        """Print as `-o` asks: "table" or "json"."""
        self.as_json = output == "json"

    def client(self) -> Client:
        # Only when it is asked for: some commands need no control plane, and must not look for one.
        if not self.opened:
            self.opened.append(self.connect())
        return self.opened[0]

    def close(self) -> None:
        while self.opened:
            self.opened.pop().close()

    def show(self, value: Any, text: str | Callable[[], str]) -> None:
        """Print the value as JSON, or the text."""
        if self.as_json:
            echo(json_line(value))
            return
        shown = text() if callable(text) else text
        if shown:
            echo(shown)

    def note(self, text: str) -> None:
        """Print a remark beside the result: to standard error, so that pipes stay clean."""
        echo(text, err=True)


@dataclass(slots=True)
class OutageNotes:
    """Says once that the control plane does not answer, and once that it does again."""

    say: Callable[[str], None]
    job_id: str
    away: bool = False

    def reached(self, answered: bool) -> None:
        if answered is not self.away:
            return
        self.away = not answered
        self.say(
            "the control plane answers again."
            if answered
            else f"the control plane does not answer; {self.job_id} keeps running. Trying again."
        )


def echo(text: str, *, err: bool = False) -> None:
    """Print the text, on a terminal with control characters escaped."""
    stream = sys.stderr if err else sys.stdout
    # A job's output may hold any.
    shown = plain(text) if stream.isatty() else text
    # A character that the stream cannot hold is spelt out, rather than end the command with an error.
    encoding = stream.encoding or "utf-8"
    click.echo(shown.encode(encoding, "backslashreplace").decode(encoding), err=err)


def plain(text: str) -> str:
    r"""The same text, each control character as its escape: ESC becomes the four characters \x1b."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def has_unicode(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether more than ASCII can be shown: not where the locale is C, although Python itself writes UTF-8 then."""
    named = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG")
    if named in ("C.UTF-8", "C.utf8", "UTF-8") and not environ.get("LC_ALL"):
        named = environ.get("LANG")  # Python has put it into LC_CTYPE, in place of C
    return (stream.encoding or "utf-8").lower().startswith("utf") and named not in ("C", "POSIX")


def json_line(value: Any) -> str:
    """One line of JSON in which no control character is left as it is."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def with_output(command: Callable[Concatenate[CommandSession, P], R]) -> Callable[P, R]:
    """Give a command `-o json` and, as its first argument, the session."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        session = click.get_current_context().find_object(CommandSession)
        assert session is not None
        session.choose(str(kwargs.pop("output")))
        return command(session, *args, **kwargs)

    choice = click.Choice(["table", "json"])
    return click.option("-o", "--output", type=choice, default="table", help="Output format.")(wrapped)


def table(
    header: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "none", width: int | None = None
) -> str:
    """Format rows in columns as wide as their widest cell; a column of numbers is aligned right.

    Args:
        width: cells that a line may have; by default those of the terminal, and any number elsewhere.
    """
    from rich.cells import cell_len

    cells = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    if not cells:
        return empty
    right = [all(map(_is_number, column)) for column in zip(*cells, strict=True)]
    width = terminal_width() if width is None else width
    # Spelt before they are measured and cut.
    lines = [list(header), *([plain(c).translate(_BLANKS) for c in row] if width else row for row in cells)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    widths = narrowed(widths, width) if width else widths
    return "\n".join(
        # Not strict: where there is no room for them, `narrowed` has left the last columns out.
        "  ".join(_fill(c, w, right=r) for c, w, r in zip(line, widths, right, strict=False)).rstrip()
        for line in lines
    )


def terminal_width() -> int | None:
    """The cells of a line on the terminal; None where standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def narrowed(widths: Sequence[int], width: int) -> list[int]:
    """The widths of columns that fit together: the last one gives way first, down to 12 cells, then the widest, down to
    8. Where that is not enough, the last columns are left out."""
    fitted = list(widths)
    while len(fitted) > 1 and _together(min(w, 8) for w in fitted) > width:
        fitted.pop()
    while _together(fitted) > width and max(fitted) > 1:
        widest = len(fitted) - 1 if fitted[-1] > 12 else fitted.index(max(fitted))
        fitted[widest] -= 1
    return fitted


def _together(widths: Iterable[int]) -> int:
    """The width of a line of these columns, two cells apart."""
    return sum(width + 2 for width in widths) - 2


def _fill(cell: str, width: int, *, right: bool) -> str:
    """The cell in as many cells as its column has; one that is cut says so."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(cell) > width:
        return set_cell_size(cell, width - 1) + ("…" if has_unicode(sys.stdout) else "~")
    gap = " " * (width - cell_len(cell))
    return gap + cell if right else cell + gap


def pairs(values: Mapping[str, Any]) -> str:
    """One `name  value` a line, without the empty ones."""
    given = {k: v for k, v in values.items() if v not in (None, "", {}, [])}
    width = max(map(len, given), default=0)
    return "\n".join(f"{key.ljust(width)}  {value}" for key, value in given.items())


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """The time since `moment`, in the biggest unit that fits twice; empty without a moment."""
    if moment is None:
        return ""
    seconds = max(0.0, ((now or datetime.now(UTC)) - moment).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def duration(seconds: float) -> str:
    """The time in its two biggest units, as `1h 5m`."""
    left = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def log_text(line: LogLine) -> str:
    return f"{line.time:%H:%M:%S} {line.worker:<10} {line.line}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def complain(error: RingleaderError, as_json: bool) -> None:
    """Print an error on standard error, without a traceback."""
    findings = getattr(error, "errors", [])
    if as_json:
        body = {"code": error.code, "message": error.message, "hint": error.hint, "errors": findings}
        echo(json_line(body), err=True)
        return
    head = _headline(error, findings[0]) if findings else error.message
    echo(f"error ({error.code}): {head}", err=True)
    for finding in findings:
        where = str(finding.get("pointer", "")).strip("/").replace("/", ".") or "job file"
        echo(f"  {where}: {_found(finding)}", err=True)
    for line in getattr(error, "log_lines", []):
        echo(f"  | {line}", err=True)
    if error.hint:
        echo(f"  → {error.hint}", err=True)


def _headline(error: RingleaderError, first: Mapping[str, Any]) -> str:
    """The sentence without the findings that follow it line by line."""
    if error.message.startswith(f"{first.get('pointer')}: "):  # they are all that it says
        return "the request has wrong values:"
    return error.message.split(": ", 1)[0].rstrip(".") + ":"


def _found(finding: Mapping[str, Any]) -> str:
    """The message of a finding, with what is allowed where the message does not say it."""
    message, allowed = str(finding.get("message") or ""), str(finding.get("allowed") or "")
    if not message or not allowed or allowed in message:
        return message or allowed
    return f"{message}; allowed: {allowed}"


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).replace("-", "", 1).replace("e", "", 1).isdigit()
