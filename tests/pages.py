"""The code blocks of this repository's pages, and the training functions among them."""

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


def fenced(page: str, language: str, word: str) -> list[str]:
    """The texts of the blocks of that language that have that word behind it."""
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [text for name, words, text in found if name == language and word in words.split()]


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


def names_of(page: str, text: str) -> dict[str, Any]:
    """What stands in a block when it has run behind the page's setup."""
    names: dict[str, Any] = {}
    exec("".join([*fenced(page, "python", "setup"), text]), names)
    return names
