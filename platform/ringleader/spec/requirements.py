"""Packages that a job brings: a list of pinned requirements, or the path of a file of them in the working directory."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import PlainValidator

from ringleader.errors import SpecInvalid
from ringleader.spec.part import Impossible

MOST = 1000
MOST_CHARACTERS = 500
PINNED = re.compile(
    r"(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[A-Za-z0-9,._ -]*\])?"
    r"\s*==\s*(?P<version>[A-Za-z0-9.!+_-]+)\s*(;.*)?"
)
OPTIONS = ("--extra-index-url", "--find-links", "--hash", "--index-url", "--no-index", "--only-binary")
"""Options of a requirements file that say where packages come from. Others name files, which its digest misses."""
OPTION = re.compile(rf"(?:{'|'.join(OPTIONS)})(?:[\s=]\s*[^\s-]\S*)?")
"""One of them alone: a second one in its line, `--no-index -e ./here`, would be installed without a version."""


def pin_of(requirement: str) -> tuple[str, str] | None:
    """The (name, version) of `name==version`, the name as package indexes compare it; None of anything else."""
    found = PINNED.fullmatch(requirement.strip())
    return (re.sub(r"[-_.]+", "-", found["name"]).lower(), found["version"]) if found else None


def entries(text: str) -> Iterator[str]:
    """The requirements and options of a requirements file, one after the other, without comments."""
    # As pip has it, a backslash at its end joins a line with the next.
    for line in text.replace("\\\n", " ").splitlines():
        # As pip has it: `#` begins a comment only behind white space, so that URLs keep their fragments.
        entry = re.sub(r"(^|\s)#.*$", "", line).strip()
        if entry:
            yield entry


def without_options(entry: str) -> str:
    """A requirement without the hashes behind it."""
    return re.split(r"\s--", entry, maxsplit=1)[0].strip()


def unpinned(found: Iterable[str]) -> str | None:
    """The first of these entries that is neither a known option nor name==version."""
    return next((entry for entry in found if not _known(entry)), None)


def clashing(found: Iterable[str]) -> tuple[str, str] | None:
    """The first two of these entries that pin one package to two versions."""
    seen: dict[str, str] = {}
    for entry in map(without_options, found):
        # Those with a marker may exclude each other.
        pin = None if ";" in entry else pin_of(entry)
        if pin is not None and pin_of(seen.setdefault(pin[0], entry)) != pin:
            return seen[pin[0]], entry
    return None


def uninstallable(requirements: str | list[str] | None) -> Iterator[dict[str, Any]]:
    """Findings on a list of requirements that cannot be installed. For new jobs only: older ones are stored with it."""
    if isinstance(requirements, list) and (two := clashing(requirements)):
        allowed = "one version per package"
        message = f"{two[0]} and {two[1]} cannot both be installed; allowed: {allowed}"
        yield {"pointer": "/requirements", "value": two[1], "allowed": allowed, "message": message}


def _known(entry: str) -> bool:
    if entry.startswith("-"):
        return OPTION.fullmatch(entry) is not None
    return pin_of(without_options(entry)) is not None


def check_requirements(requirements: str | list[str] | None, folder: Path) -> None:
    """Check that the requirements file, if one is named, is in the working directory `folder`, every entry pinned.

    Raises:
        SpecInvalid: it is not.
    """
    if not isinstance(requirements, str):
        return
    allowed = f"a file in {folder.name or folder} with lines of the form name==version"
    try:
        listed = list(entries((folder / requirements).read_text()))
        odd, two = unpinned(listed), clashing(listed)
        why = f"has the line {odd!r}" if odd is not None else f"has both {two[0]} and {two[1]}" if two else ""
    except (OSError, UnicodeDecodeError) as error:
        why = f"cannot be read ({error.strerror if isinstance(error, OSError) else error})"
    if why:
        finding = {"pointer": "/requirements", "value": requirements, "allowed": allowed}
        raise SpecInvalid([finding | {"message": f"{requirements} {why}; allowed: {allowed}"}])


def _checked(value: Any) -> str | list[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        path = PurePosixPath(value)
        if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in value:
            raise ValueError("the file must be in the working directory; allowed: a path relative to it")
        return value
    if not isinstance(value, list) or len(value) > MOST:
        raise ValueError(
            f"allowed: the path of a requirements file, or a list of up to {MOST} entries name==version"
        )
    return list(_listed(value))


def _listed(requirements: Sequence[Any]) -> Iterator[str]:
    for number, requirement in enumerate(requirements):
        short = isinstance(requirement, str) and len(requirement) <= MOST_CHARACTERS
        # Printable: some characters begin a new line where the list becomes a file.
        if not (short and requirement.isprintable()) or pin_of(requirement) is None:
            raise Impossible(
                str(number),
                requirement,
                "without an exact version, nodes may install different versions; allowed: name==version",
            )
        yield requirement


Requirements = Annotated[
    str | list[str] | None, PlainValidator(_checked, json_schema_input_type=str | list[str] | None)
]
