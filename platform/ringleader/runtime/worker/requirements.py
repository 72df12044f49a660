"""The packages that a job brings: read from the job file or its requirements file, checked against the engine's own."""

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from ringleader.errors import RequirementsFailed
from ringleader.spec.requirements import OPTIONS, entries, pin_of, unpinned, without_options

ENGINE = "ringleader"
EXTRAS = ("", "engine")


@dataclass(frozen=True, slots=True)
class RequirementsLock:
    """A job's requirements, as a requirements file.

    Attributes:
        name: its name in messages.
        entries: requirements with their hashes, and options.
        pins: version by package.
    """

    name: str
    entries: tuple[str, ...]
    pins: Mapping[str, str]

    @property
    def text(self) -> str:
        return "".join(f"{entry}\n" for entry in self.entries)

    def digest(self, own: Mapping[str, str]) -> str:
        """The digest of all that decides what is installed: this, the Python, and the engine's packages, which stay."""
        python = (*sys.version_info[:3], sysconfig.get_platform())
        told = json.dumps([self.entries, python, sorted(own.items())])
        return hashlib.sha256(told.encode()).hexdigest()[:32]

    def only(self, pins: Mapping[str, str]) -> str:
        """A requirements file of those packages: the entries of this one as they are, others by their versions."""
        options = [entry for entry in self.entries if entry.startswith("-")]
        named = {(pin_of(without_options(entry)) or ("",))[0]: entry for entry in self.entries}
        # The entry itself where there is one: it carries the hashes that its version alone does not tell.
        wanted = [named.get(name, f"{name}=={version}") for name, version in pins.items()]
        return "".join(f"{entry}\n" for entry in [*options, *wanted])


def read(requirements: str | Sequence[str], folder: Path) -> RequirementsLock:
    """The requirements in the job file, or in the file that it names.

    Args:
        folder: the unpacked working directory.

    Raises:
        RequirementsFailed: there is no such file, or something in it is not pinned.
    """
    if not isinstance(requirements, str):
        return _lock("requirements", requirements)
    path = folder / requirements
    try:
        # Resolved: a link in the working directory may lead out of it.
        if not path.resolve().is_relative_to(folder.resolve()):
            raise RequirementsFailed(
                f"the requirements file {requirements} lies outside the working directory."
            )
        return _lock(requirements, list(entries(path.read_text())))
    except (OSError, UnicodeDecodeError) as error:
        raise RequirementsFailed(
            f"the requirements file {requirements} cannot be read: {error}.",
            hint="Check that the file is in working_dir.",
        ) from None


def _lock(name: str, found: Sequence[str]) -> RequirementsLock:
    if (odd := unpinned(found)) is not None:
        raise RequirementsFailed(
            f"{name} has {odd!r}, which is neither name==version nor one of {', '.join(OPTIONS)}.",
            hint="Every node must get the same versions: `uv pip compile` and `pip freeze` write such files.",
        )
    pins = (pin_of(without_options(entry)) for entry in found)
    return RequirementsLock(name, tuple(found), dict(pin for pin in pins if pin is not None))


def refuse_replacing(lock: RequirementsLock, own: Mapping[str, str]) -> None:
    """Refuse another version of a package that the engine uses itself. Raises RequirementsFailed."""
    for name, version in lock.pins.items():
        # A local part, as +cpu, is a build of the same version.
        if name in own and version.partition("+")[0] != own[name].partition("+")[0]:
            raise RequirementsFailed(
                f"{lock.name} asks for {name}=={version}; the engine on this node uses {name}=={own[name]}, which "
                "cannot be replaced.",
                hint=f"Leave {name} out, require that version, or change the installation on the nodes.",
            )


@cache
def engine_packages() -> Mapping[str, str]:
    """The versions of the engine and of all that it needs, as installed here, by name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    frontier = [(ENGINE, extra) for extra in EXTRAS]
    while frontier:
        name, extra = frontier.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform or Python
        found[name] = package.version
        frontier += _needs(package.requires or [], extra)
    return found


def _needs(lines: Sequence[str], extra: str) -> list[tuple[str, str]]:
    wanted = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            # The normal form of PEP 503: my_package and my-package are one.
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            wanted += [(name, option) for option in ("", *requirement.extras)]
    return wanted
