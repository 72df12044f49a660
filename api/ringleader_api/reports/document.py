"""A report as a document: sections of facts, charts, tables and text, and the one HTML file that they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ringleader.text import utf8
from ringleader_api.reports.chart import FOOT, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart

CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)
"""The policy of an answer that is a report: no script, and nothing from elsewhere."""
CUT = 300
"""The most characters of a cell or a fact."""
CUT_TEXT = 100_000
_SIZE = {
    "width": WIDTH,
    "height": HEIGHT,
    "left": LEFT,
    "right": WIDTH - RIGHT,
    "top": TOP,
    "foot": HEIGHT - FOOT,
}
# Escapes every value: names, labels, errors and scores are whatever users wrote.
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part with a title: notes, facts (name and value), charts, a table, text as it is."""

    title: str
    notes: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart] = ()
    table: Table | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A report; `made` says when and by what."""

    title: str
    made: str
    sections: Sequence[Section]

    def html(self) -> bytes:
        """One file that needs no other and runs no script."""
        page = _TEMPLATES.get_template("page.html.j2").render(report=self, size=_SIZE)
        return utf8(page).encode()


def cut(value: object, most: int = CUT) -> str:
    """The value as text of that many characters at most; empty where it is None."""
    text = "" if value is None else str(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def when(at: datetime | None) -> str:
    return "–" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def seconds(value: float | None) -> str:
    """A time as people read it: 1.5 s, 12 min 5 s, 3 h 20 min."""
    if value is None:
        return "–"
    if value < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if hours else f"{minutes} min {rest} s"
