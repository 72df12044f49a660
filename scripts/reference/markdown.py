"""Markdown of the reference: headings, tables and text that read the same on a code host and in the site."""

import re
from collections.abc import Iterable, Sequence

WRITTEN = "<!-- Written by scripts/docs.py from the code: change that, and run `make docs`. -->"
_CODE = re.compile(r"(`[^`]*`)")


def page(title: str, lead: str, *parts: str) -> str:
    """A whole page, with one empty line between its parts."""
    return "\n\n".join([f"# {title}", WRITTEN, lead, *(part for part in parts if part)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows."""
    lines = [" | ".join(_cell(cell) for cell in row) for row in rows]
    if not lines:
        return ""
    return "\n".join(f"| {line} |" for line in (" | ".join(head), " | ".join("---" for _ in head), *lines))


def code(text: str) -> str:
    """The text as code in a line; nothing where there is none."""
    return f"`{text}`" if text else ""


def block(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def prose(text: str) -> str:
    """Words of the code as Markdown: what would be markup there, outside of backticks, is none."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([<>*\[\]\\])", r"\\\1", part)
        for part in _CODE.split(text)
    )


def sentence(text: str) -> str:
    """Words as a sentence: a capital at the beginning, unless it is code, and a full stop."""
    text = " ".join(text.split())
    return (
        text
        if not text
        else text[0].upper() + text[1:] + ("" if text.endswith((".", ":", "…", "]")) else ".")
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
