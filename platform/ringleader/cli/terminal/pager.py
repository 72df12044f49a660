"""The whole terminal as one page of the overview, drawn anew each second, with keys to scroll and to quit."""

import time
from datetime import UTC, datetime

from rich.live import Live
from rich.text import Text

from ringleader.cli.output import ago
from ringleader.cli.terminal.keys import DOWN, QUIT, UP, keys
from ringleader.cli.terminal.overview import Overview, OverviewReader, columns, heading, rows
from ringleader.cli.terminal.progress import STYLES
from ringleader.cli.terminal.screen import Screen
from ringleader.errors import ApiProblem, ApiUnreachable

REFRESH_S = 1.0


def page(reader: OverviewReader, screen: Screen) -> None:
    """Draw until somebody quits.

    Raises:
        ApiUnreachable: the control plane does not answer at all; later outages are waited for.
    """
    seen, away, offset = reader.look(time.monotonic()), False, 0
    looked_s = time.monotonic()
    live = Live(console=screen, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with keys() as next_key, live:
        while True:
            offset = max(0, min(offset, len(seen.jobs) - jobs_shown(screen.height)))
            live.update(frame(seen, screen, offset, away=away), refresh=True)
            key = next_key(max(0.0, looked_s + REFRESH_S - time.monotonic()))
            if key.lower() == QUIT:
                return
            offset += (key == DOWN) - (key == UP)
            if time.monotonic() >= looked_s + REFRESH_S:
                try:
                    seen, away = reader.look(time.monotonic()), False
                except (ApiProblem, ApiUnreachable) as error:
                    if isinstance(error, ApiProblem) and error.status < 500:
                        raise
                    away = True
                # From the answer on: a slow control plane is not asked again without a pause.
                looked_s = time.monotonic()


def jobs_shown(height: int) -> int:
    """The number of jobs that there is room for, between the heading, the table's header and the footer."""
    return max(1, height - 4)


def frame(seen: Overview, screen: Screen, offset: int, *, away: bool) -> Text:
    """One page: as many lines as the screen has at most, none wider."""
    header, *jobs = rows(seen, columns(screen.width), screen.width)
    last = min(offset + jobs_shown(screen.height), len(jobs))
    lines = [screen.text(line) for line in heading(seen)]
    lines.append(screen.text(header, "bold"))
    for view, line in list(zip(seen.jobs, jobs, strict=False))[offset:last]:
        lines.append(screen.text(line, STYLES.get(view.state, "yellow")))
    if away:
        since = ago(seen.at, datetime.now(UTC))
        lines.append(screen.text(f"the control plane does not answer; as it was {since} ago", "red"))
    else:
        scrolled = f", arrows scroll: {offset + 1}-{last} of {len(jobs)}" if len(jobs) > last - offset else ""
        lines.append(screen.text(f"q quits{scrolled}", "dim"))
    for shown in lines:
        shown.truncate(screen.width, overflow="ellipsis" if screen.unicode else "crop")
    return Text("\n").join(lines)
