"""Keyset cursors: each names the last item shown, so that what comes or goes meanwhile repeats and hides nothing."""

import base64
import binascii
import re
from dataclasses import dataclass

from ringleader_api.problems import Unprocessable


@dataclass(frozen=True, slots=True)
class ListCursors:
    """The cursors of one list. A key is the text that the list is sorted by; `pattern` matches the keys that this list
    gives out, and nothing else, such as cursors of other lists."""

    pattern: re.Pattern[str]

    def cursor(self, key: str) -> str:
        return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")

    def parts(self, cursor: str) -> tuple[str, ...]:
        """The groups of the pattern in the key behind `cursor`. Raises Unprocessable: this list gives out no such
        cursor."""
        try:
            key = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        except (binascii.Error, ValueError):
            key = ""
        found = self.pattern.fullmatch(key)
        # Encoded again, since several spellings of base64 decode to one key.
        if found is None or self.cursor(key) != cursor:
            raise Unprocessable(
                f"the cursor {cursor!r} did not come from this list.",
                hint="Leave the cursor out to read the first page.",
                code="bad_cursor",
            )
        return found.groups()
