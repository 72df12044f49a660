"""The test files that a change reaches by the graph of imports: `--since REF`."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ringleader.parsing import parse

ROOT = Path(__file__).parents[1]
PACKAGES = {"platform": "ringleader", "api": "ringleader_api", "jobs": "ringleader_jobs"}
PRODUCT = tuple(f"{folder}/{package}/" for folder, package in PACKAGES.items())
STARTING = ("tests/integration/", "tests/e2e/", "tests/chaos/", "tests/architecture/")
"""Their tests run the product in processes of its own, or read all of it: any change of it reaches them."""


def changed(ref: str) -> list[str]:
    """Paths that differ from where this branch left `ref`, in commits, in the working tree or untracked."""
    base = _git("merge-base", ref, "HEAD").strip()
    return sorted(
        {*_git("diff", "--name-only", base).split(), *_git("ls-files", "-o", "--exclude-standard").split()}
    )


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def reached(paths: list[str]) -> set[str] | None:
    """The test files that a change of these paths reaches; None: all of them."""
    if any(not is_python(path) for path in paths):
        return None
    import grimp  # only here: most runs need no graph

    modules, helpers = set(), set()
    graph = grimp.build_graph(*PACKAGES.values(), cache_dir=None)
    for path in paths:
        module = module_of(path)
        if module is None:
            helpers.add(path)
        elif module in graph.modules:
            modules |= {module} | graph.find_downstream_modules(module)
        else:  # it is gone: nobody knows who imported it
            return None
    return {file for file in tests() if _reaches(file, modules, helpers, product=bool(modules))}


def _reaches(file: str, modules: set[str], helpers: set[str], *, product: bool) -> bool:
    if product and file.startswith(STARTING):
        return True
    return any(used in helpers or modules & set(imported(used)) for used in helpers_of(file))


def is_python(path: str) -> bool:
    """Whether the graph knows what the file reaches. A `conftest.py` reaches all below it: that is not worked out."""
    known = path.startswith((*PRODUCT, "tests/")) and path.endswith(".py")
    return known and not path.endswith("conftest.py")


def module_of(path: str) -> str | None:
    """The dotted name of a file of the product."""
    if not path.startswith(PRODUCT):
        return None
    parts = Path(path).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tests() -> Iterator[str]:
    yield from (str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py")))


@cache
def imported(file: str) -> tuple[str, ...]:
    """Dotted names that a test file imports, wherever in it: modules, or what lies in one."""
    names = []
    for node in ast.walk(parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)


@cache
def helpers_of(file: str) -> frozenset[str]:
    """The test file, and the modules of `tests/` that it needs."""
    found, open_ones = {file}, [file]
    while open_ones:
        here = open_ones.pop()
        folders = (ROOT / "tests", ROOT / "tests/unit", (ROOT / here).parent)
        for name in imported(here):
            for folder in folders:
                path = folder / f"{name.replace('.', '/')}.py"
                used = str(path.relative_to(ROOT)) if path.is_file() else ""
                if used and used not in found:
                    found.add(used)
                    open_ones.append(used)
    return frozenset(found)
