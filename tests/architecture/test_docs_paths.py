"""What the pages name is there: every path to a file or folder of this repository, and every name of the glossary."""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

import pytest
from pages import ROOT, all_pages, blocks_of

from ringleader.parsing import parse

OLD_NAMES = "docs/moved-in-0.2.md"
"""Its left column is of paths that are gone."""
CODE = frozenset([".py", ".ts", ".tsx", ".sh", ".md"])
WITH_A_FOLDER = frozenset([".json", ".jsonl", ".yaml", ".toml", ".css", ".html"])
PATH = re.compile(r"[\w.@-]+(/[\w.@-]+)*/?")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = frozenset([".git", ".venv", "node_modules", "__pycache__"])
NOT_HERE = frozenset(["platform/__init__.py", "api/ringleader_api/static"])
"""The file that must not be, and the folder that is built."""
CHANGES = frozenset(["CHANGELOG.md", OLD_NAMES])


def walked() -> Iterator[tuple[str, list[str], list[str]]]:
    """Like `os.walk` of the repository, without what is installed or built there."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ELSEWHERE]
        yield folder, folders, names


@cache
def there() -> frozenset[str]:
    """Every path of the repository and every end of one: `train/run.py` of `platform/ringleader/train/run.py`."""
    files = [PurePosixPath(folder, name).relative_to(ROOT) for folder, _, names in walked() for name in names]
    paths = {*files, *(folder for file in files for folder in file.parents)}
    return frozenset("/".join(path.parts[start:]) for path in paths for start in range(len(path.parts)))


@cache
def rooms() -> frozenset[str]:
    """The first words of paths to folders that are told apart from other words with a slash in them."""
    tops = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    inner = [*ROOT.glob("platform/ringleader/*/"), *ROOT.glob("api/ringleader_api/*/")]
    return frozenset(tops | {path.name for path in inner})


def named_paths(page: str) -> list[str]:
    """What stands between backticks on the page and is meant as a path of this repository."""
    text = FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = []
    for span in re.findall(r"`([^`]+)`", text):
        path = PurePosixPath(span)
        if not PATH.fullmatch(span):
            continue
        is_folder = len(path.parts) > 1 and not path.suffix and path.parts[0] in rooms()
        if path.suffix in CODE or (path.suffix in WITH_A_FOLDER and len(path.parts) > 1) or is_folder:
            found.append(span)
    return found


@pytest.mark.parametrize("page", [page for page in all_pages() if page not in CHANGES])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    made_by_the_reader = {block.file for block in blocks_of(page)}
    named = [path for path in named_paths(page) if path not in made_by_the_reader]
    assert [path for path in named if path.rstrip("/") not in there() | NOT_HERE] == []


def test_the_pages_do_name_paths() -> None:
    assert len(named_paths("docs/explanation/architecture.md")) > 20


@pytest.mark.parametrize(
    "name", re.findall(r"In ((?:`[\w.]+`(?:, )?)+)\.", (ROOT / "docs/glossary.md").read_text())
)
def test_every_place_that_the_glossary_names_exists(name: str) -> None:
    for dotted in re.findall(r"`([\w.]+)`", name):
        full = dotted if dotted.startswith("ringleader_api.") else f"ringleader.{dotted}"
        assert defined(full.split(".")), dotted


def defined(parts: list[str]) -> bool:
    """Whether a module, or a class, function, attribute or constant in one, has this name; nothing is imported."""
    base = ROOT / ("api" if parts[0] == "ringleader_api" else "platform")
    for length in range(len(parts), 0, -1):
        module = base.joinpath(*parts[:length])
        file = module.with_suffix(".py") if module.with_suffix(".py").exists() else module / "__init__.py"
        if file.exists():
            return all_in(parse(file.read_text(encoding="utf-8")).body, parts[length:])
    return False


def all_in(body: list[ast.stmt], names: list[str]) -> bool:
    if not names:
        return True
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == names[0]:
            return all_in(node.body, names[1:])
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == names[0] for target in targets):
            return len(names) == 1
    # A name that a package hands on, or an attribute that a class sets in its methods.
    return len(names) == 1 and any(names[0] in ast.unparse(node) for node in body)
