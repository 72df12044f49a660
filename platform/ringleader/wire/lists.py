"""Lists of names in one parameter of a query: separated by commas, and in quotation marks where a name holds one.

Any name can be asked for: `loss,"accuracy, of classes"` are two. Between quotation marks two of them are one. Spaces
around a name are none of its own, unless they stand between quotation marks too.
"""

import re
from collections.abc import Iterable

_PART = re.compile(r'(?:^|,)\s*(?:"((?:[^"]|"")*)"\s*(?=,|$)|([^,]*))')


def joined(names: Iterable[str]) -> str:
    """The list of these names as a parameter; `parted` reads it back."""
    return ",".join(map(_quoted, names))


def parted(text: str) -> list[str]:
    """The names of a list, each once, in order; without empty ones. What begins with a quotation mark and does not end
    with one stands for itself."""
    parts = (_name(*part.groups()) for part in _PART.finditer(text))
    return list(dict.fromkeys(filter(None, parts)))


def _name(quoted: str | None, plain: str | None) -> str:
    return quoted.replace('""', '"') if quoted is not None else (plain or "").strip()


def _quoted(name: str) -> str:
    if "," not in name and not name.startswith('"') and name == name.strip():
        return name
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
