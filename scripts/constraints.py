"""Write constraints.txt: the exact versions of what `ringleader` and its extras need here, without URLs or hashes."""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = frozenset({"engine", "server", "bench", "dev", "accelerate", "hf", "lightning", "trl"})
PLATFORM_OWN = re.compile(r"^(nvidia-|triton$|cuda-|pip$|setuptools$|wheel$)")
"""Left to the variant of torch that the index has."""


def main() -> int:
    versions = needed("ringleader", EXTRAS)
    head = "# Written by scripts/constraints.py: what the extras need together, pinned. No URLs, no hashes.\n"
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    (ROOT / "constraints.txt").write_text(head + "".join(lines))
    print(f"{len(lines)} packages")
    return 0


def needed(root: str, extras: frozenset[str]) -> dict[str, str]:
    """name → version of everything that `root` with these extras reaches, itself left out."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    frontier = [(root, extra) for extra in ("", *sorted(extras))]
    while frontier:
        name, extra = frontier.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform or Python
        if name != root and not PLATFORM_OWN.match(name):
            found[name] = package.version.split("+")[0]
        frontier += _requirements(package, extra)
    return found


def _requirements(package: Distribution, extra: str) -> list[tuple[str, str]]:
    wanted = []
    for line in package.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            wanted += [(name, option) for option in ("", *requirement.extras)]
    return wanted


if __name__ == "__main__":
    sys.exit(main())
