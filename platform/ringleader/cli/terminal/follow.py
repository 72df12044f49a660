"""Following a job to its end: its progress as a bar or as plain lines, its log lines, and outages said once."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from rich.live import Live

from ringleader.cli.output import CommandSession, OutageNotes, log_text
from ringleader.cli.terminal.pace import Pace
from ringleader.cli.terminal.progress import JobSnapshot, drawn, sentence
from ringleader.cli.terminal.screen import Screen
from ringleader.client import Client, Job
from ringleader.client.job import OUTAGE_S
from ringleader.errors import ApiProblem, ApiUnreachable
from ringleader.wire.states import State
from ringleader.wire.views import JobView

LINE_EVERY_S = 30.0  # where lines are kept, as those of a CI
METRICS = ("loss", "samples_per_s")
_BEHIND = 256  # by so many steps the newest metrics may come later than the step


class ProgressDisplay(Protocol):
    """A place that shows the progress of a job, and lines beside it."""

    outage_s: float
    """The seconds for which the control plane may be away."""

    def show(self, now_s: float, view: JobView, known: Callable[[JobView], JobSnapshot]) -> None: ...

    def say(self, text: str) -> None: ...


class LiveBar:
    """A bar at the end of the terminal; lines are printed above it."""

    outage_s = math.inf  # somebody looks on, and has Ctrl-C

    def __init__(self, screen: Screen, live: Live) -> None:
        self._screen, self._live = screen, live

    def show(self, now_s: float, view: JobView, known: Callable[[JobView], JobSnapshot]) -> None:
        self._live.update(drawn(known(view), self._screen), refresh=True)

    def say(self, text: str) -> None:
        for line in text.split("\n"):
            self._screen.print(self._screen.text(line), soft_wrap=True)


class PlainLines:
    """A line at each change of state, and now and then between."""

    outage_s = OUTAGE_S

    def __init__(self, session: CommandSession) -> None:
        self._session = session
        self._state: State | None = None
        self._said_s = -math.inf

    def show(self, now_s: float, view: JobView, known: Callable[[JobView], JobSnapshot]) -> None:
        due = view.state is not self._state or now_s - self._said_s >= LINE_EVERY_S
        # The end is said by the command, and programs read the errors of `-o json`.
        if due and not view.state.ended and not self._session.as_json:
            self._state, self._said_s = view.state, now_s
            self._session.note(sentence(known(view)))

    def say(self, text: str) -> None:
        self._session.note(text)


class JobReader:
    """Reads what is known of a job at one look: its pace, and its newest metrics."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pace = Pace()
        self._newest: dict[str, float] = {}

    def look(self, now_s: float, view: JobView) -> None:
        self._pace.look(now_s, view)

    def snapshot(self, view: JobView) -> JobSnapshot:
        """One request, where there may be metrics."""
        if view.progress.step and view.state in (State.RUNNING, State.RECOVERING):
            # Nobody waits for figures: they are there at the next look.
            with suppress(ApiProblem, ApiUnreachable):
                self._newest |= self._metrics(view)
        rows_per_s, loss = self._newest.get("samples_per_s"), self._newest.get("loss")
        return JobSnapshot(view, self._pace.steps_per_s, rows_per_s, loss)

    def _metrics(self, view: JobView) -> dict[str, float]:
        first = max(0, view.progress.step - _BEHIND)
        found = self._client.curves([view.id], *METRICS, first=first, max_points=4)
        return {
            curve.name: value for curve in found.curves if (value := (curve.values or [None])[-1]) is not None
        }


def follow(session: CommandSession, job: Job, *, timeout: float | None, logs: bool) -> None:
    """Show the job's progress, and its log lines if wanted, until it has ended.

    Raises:
        WaitTimeout: it has not ended in time.
        ApiUnreachable: the control plane was away for too long.
    """
    reader, after = JobReader(session.client()), 0
    with display_of(session) as display:
        outage = OutageNotes(display.say, job.id)
        for view in job.watch(timeout, outage_s=display.outage_s):
            outage.reached(view is not None)
            if view is None:
                continue
            now_s = time.monotonic()
            reader.look(now_s, view)
            if logs:
                after = _print_logs(session, display, job, after)
            display.show(now_s, view, reader.snapshot)


@contextmanager
def display_of(session: CommandSession) -> Iterator[ProgressDisplay]:
    """The bar where standard error is a terminal that can be drawn on, else plain lines."""
    screen = Screen(sys.stderr)
    if not screen.draws:
        yield PlainLines(session)
        return
    # Not redirected: standard output may be a pipe, whose lines are none of the terminal's.
    live = Live(
        console=screen, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    with live:
        yield LiveBar(screen, live)


def _print_logs(session: CommandSession, display: ProgressDisplay, job: Job, after: int) -> int:
    """Print the lines numbered above `after`; returns the number of the last one."""
    beside = session.as_json or (isinstance(display, LiveBar) and sys.stdout.isatty())
    try:
        for line in job.logs(after=after):
            if beside:
                display.say(log_text(line))
            else:
                session.show(None, log_text(line))
            # With each line: where the reading breaks off, the next look goes on behind the last one that was printed.
            after = line.seq
    except (ApiProblem, ApiUnreachable) as error:
        if isinstance(error, ApiProblem) and error.status < 500:
            raise
        # Until then the next look reads them.
        if job.state.ended:
            display.say(f"its last log lines could not be read; print them with `ringleader logs {job.id}`.")
    return after
