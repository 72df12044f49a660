"""The pages of this repository: where they are, their code blocks, and the training functions among them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ringleader.train import Session

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)


def all_pages() -> list[str]:
    """Every page, by its path below the root. What is generated from the code (docs/reference) has tests of its own."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/**/*.md")]
    names = sorted({page.relative_to(ROOT).as_posix() for page in found})
    return [name for name in names if not name.startswith("docs/reference/")]


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, its language, the words behind it, its text."""

    page: str
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        """The page, and the line at which the text begins."""
        page = (ROOT / self.page).read_text(encoding="utf-8")
        return f"{self.page}:{page[: page.index(self.text)].count(chr(10)) + 1}"

    @property
    def file(self) -> str:
        """The name of the file that the page has the reader make of it (`file=NAME`), if it does."""
        names = [word.removeprefix("file=") for word in self.words if word.startswith("file=")]
        return names[0] if names else ""


@cache
def blocks_of(page: str) -> list[Block]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [Block(page, language, tuple(words.split()), text) for language, words, text in found]


def all_blocks(language: str, *words: str) -> list[Block]:
    """The blocks of that language on all pages; with `words` those that have one of them behind the language."""
    blocks = [block for page in all_pages() for block in blocks_of(page) if block.language == language]
    return [block for block in blocks if not words or set(words) & set(block.words)]


def fenced(page: str, language: str, word: str) -> list[str]:
    """The texts of the page's blocks of that language that have that word behind it."""
    return [block.text for block in blocks_of(page) if block.language == language and word in block.words]


@dataclass(frozen=True)
class Shown:
    """A training function that a page shows: the `train` of a block `python train`, behind those of `python setup`.

    A worker process makes it anew: it is known by its place on the page.
    """

    page: str
    number: int

    def __call__(self, session: Session) -> None:
        train: Callable[[Session], None] = names_of(self.page, self.text)["train"]
        train(session)

    @property
    def text(self) -> str:
        return fenced(self.page, "python", "train")[self.number]

    def __str__(self) -> str:
        """The heading above it, and its number."""
        page = (ROOT / self.page).read_text(encoding="utf-8")
        return f"{HEADING.findall(page[: page.index(self.text)])[-1]}-{self.number}"


@cache
def shown(page: str) -> list[Shown]:
    return [Shown(page, number) for number in range(len(fenced(page, "python", "train")))]


def all_shown() -> list[Shown]:
    """The training functions of all pages."""
    return [program for page in all_pages() for program in shown(page)]


def names_of(page: str, text: str) -> dict[str, Any]:
    """What stands in a block when it has run behind the page's setup."""
    names: dict[str, Any] = {}
    exec("".join([*fenced(page, "python", "setup"), text]), names)
    return names
