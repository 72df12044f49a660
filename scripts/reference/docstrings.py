"""Docstrings as Markdown: their text, and the sections `Args`, `Returns`, `Raises` and `Attributes` as lists."""

import inspect
import re
import textwrap

from reference.markdown import prose, sentence

SECTIONS = ("Args", "Attributes", "Returns", "Raises")
_ENTRY = re.compile(r"(?P<name>[A-Za-z_][\w., ]*): (?P<words>.*)", re.DOTALL)


def parts_of(docstring: str) -> dict[str, str]:
    """The docstring by section; the text before the first one is under the empty name."""
    found: dict[str, list[str]] = {"": []}
    lines = found[""]
    for line in inspect.cleandoc(docstring).splitlines():
        name = line.removesuffix(":")
        if line.endswith(":") and name in SECTIONS:
            lines = found.setdefault(name, [])
        else:
            lines.append(line)
    return {name: textwrap.dedent("\n".join(lines)).strip("\n") for name, lines in found.items()}


def entries_of(section: str) -> dict[str, str]:
    """The entries of a section by name, each in one line. `a, b: words` are two."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section):
        if match := _ENTRY.fullmatch(" ".join(entry.split())):
            found.update({name.strip(): match["words"] for name in match["name"].split(",")})
    return found


def as_markdown(docstring: str) -> str:
    """The docstring as paragraphs and lists."""
    parts = parts_of(docstring)
    shown = [prose(parts[""])] if parts[""] else []
    for name in SECTIONS:
        if name in parts:
            title = {"Args": "Arguments"}.get(name, name)
            shown.append(f"{title}:\n\n{_listed(parts[name])}")
    return "\n\n".join(shown)


def summary(docstring: str) -> str:
    """The first paragraph, in one line."""
    return sentence(prose(parts_of(docstring)[""].split("\n\n")[0]))


def _listed(section: str) -> str:
    entries = entries_of(section)
    if not entries:
        return prose(sentence(section))
    return "\n".join(f"- `{name}`: {prose(words)}" for name, words in entries.items())
