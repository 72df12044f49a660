"""Training that waits for a test: behind a gate every slice takes its time, until the test opens the gate."""

import time
from pathlib import Path
from typing import Any

CRAWL_S = 0.5
"""A slice behind a closed gate. The loop goes on, so that members still meet at the end of each step."""


def gates(folder: Path, *steps: int) -> dict[str, str]:
    """The param `gates`: closed, each behind that many committed steps."""
    return {str(step): str(folder / f"gate-{step}") for step in steps}


def open_gate(params: dict[str, Any], step: int) -> None:
    """What trains with these params, goes on at its full pace until the next gate."""
    Path(params["gates"][str(step)]).touch()


def keep_pace(session: Any) -> None:
    """Called in the loop's body."""
    until = time.monotonic() + CRAWL_S
    for step, gate in session.params.get("gates", {}).items():
        while session.global_step >= int(step) and not Path(gate).exists() and time.monotonic() < until:
            time.sleep(0.01)
