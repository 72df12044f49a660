"""Findings about a program, as the event `program.differs` tells them: their sentences, and the reason that a result
gives for other bits."""

from collections.abc import Iterable, Mapping
from typing import Any

DIFFERS = "program.differs"
NO_HARM = "nothing has gone wrong yet"
RAISES = "raises"
"""The field of an event about an exception of joiners: such a worker ends the job, and no weight differs."""
ELSEWHERE = (
    "another worker, which may be gone by now, has found that its weights depend on who computes what; events and logs "
    "of the job may name what it was, and `ringleader check` looks for it"
)
"""The reason of a result whose workers know of a finding, but not what it was."""
MOST_NAMED = 3
"""The number of findings behind the first that a reason names."""


def sentence_of(variable: str, line: str, how: str, cure: str) -> str:
    # "the weights 0.bias" and "the kept object 'ema'" are the session's.
    whose = "" if variable.startswith("the ") else "the program's "
    return f"{whose}{variable} ({line}) {how}: {cure}"


def why_of(findings: Iterable[Mapping[str, Any]]) -> str:
    """The variables that differ, with their lines and the cure; empty where none does.

    Args:
        findings: the data of the events, or the fields of findings. Of several about one variable the first counts.
    """
    by_name: dict[str, tuple[str, str, str, str]] = {}
    for found in findings:
        if found.get(RAISES):
            continue
        # From an event of a job's own process: whatever is there.
        variable, line, how, cure = (str(found.get(name, "")) for name in ("variable", "line", "how", "cure"))
        # That was said at the time; weights may differ since then.
        by_name.setdefault(variable, (variable, line, how, cure.removeprefix(f"{NO_HARM}: ")))
    if not by_name:
        return ""
    first, *others = by_name.values()
    also = ", ".join(f"{variable} ({line})" for variable, line, *_ in others[:MOST_NAMED])
    return f"{sentence_of(*first)}{f'; also {also}' if also else ''}"
