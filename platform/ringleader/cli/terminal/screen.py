"""The terminal to draw on: its width, colours and characters, and nothing of a job's that it would obey."""

import os
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.text import Text

from ringleader.cli.output import has_unicode, plain


class Screen(Console):
    """A console of Rich on one stream, with control codes only where that is a terminal.

    NO_COLOR and TERM are obeyed by Rich itself.
    """

    def __init__(
        self,
        stream: TextIO,
        environ: Mapping[str, str] = os.environ,
        *,
        width: int | None = None,
        height: int | None = None,
    ) -> None:
        super().__init__(
            file=stream,
            # Else FORCE_COLOR would put control codes into a pipe.
            force_terminal=stream.isatty(),
            width=width,
            height=height,
            markup=False,
            emoji=False,
            highlight=False,
            _environ=environ,
        )
        self.unicode = has_unicode(stream, environ)

    @property
    def encoding(self) -> str:
        """The encoding by which Rich chooses its bars and boxes."""
        return super().encoding if self.unicode else "ascii"

    @property
    def draws(self) -> bool:
        """Whether what was printed can be drawn over."""
        return self.is_terminal and not self.is_dumb_terminal

    def text(self, given: str, style: str = "") -> Text:
        """The text as this terminal can show it."""
        shown = plain(given)
        return Text(shown if self.unicode else shown.encode("ascii", "replace").decode(), style)
