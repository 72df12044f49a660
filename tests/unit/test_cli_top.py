"""`ringleader top`: what is asked, in which order jobs stand, and how a page fits the terminal."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from fake_api import AT, TOKEN, URL, FakeApi, job_id, job_view
from pseudo_terminal import PseudoTerminal
from rich.cells import cell_len

from ringleader.cli.main import main
from ringleader.cli.terminal.overview import Overview, OverviewReader, columns, heading, ordered
from ringleader.cli.terminal.pager import frame, jobs_shown
from ringleader.cli.terminal.screen import Screen
from ringleader.client import Client
from ringleader.wire.states import State
from ringleader.wire.views import JobView

Run = Callable[..., tuple[int, str, str]]
STATES = list(State)
NOW = datetime.fromisoformat(AT)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(jobs=[job_view(k, state=str(state)) for k, state in enumerate(STATES)], page=200)


@pytest.fixture
def run(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments, connect=lambda: Client(URL, TOKEN, transport=api))
        return code, *capsys.readouterr()

    return run


def test_running_jobs_come_first_and_ended_ones_last_each_in_the_order_of_the_api() -> None:
    jobs = [
        JobView.model_validate(job_view(k, state=str(state))) for k, state in enumerate([*STATES, *STATES])
    ]
    states = [view.state for view in ordered(jobs)]
    assert states[:12] == [
        state
        for state in ("running", "recovering", "starting", "stopping", "queued", "paused")
        for _ in range(2)
    ]
    ended = [view for view in ordered(jobs) if view.state.ended]
    assert [view.id for view in ended] == sorted(view.id for view in ended)


def test_a_look_is_one_request_for_the_jobs_and_one_for_the_cluster_however_many_there_are(
    api: FakeApi,
) -> None:
    api.jobs = [job_view(k) for k in range(250)]
    reader = OverviewReader(Client(URL, TOKEN, transport=api), state=None, project=None)
    for now_s in (0.0, 1.0):
        seen = reader.look(now_s)
    assert [request.url.path for request in api.seen] == ["/api/v1/jobs", "/api/v1/cluster"] * 2
    assert heading(seen)[0] == "jobs of the newest 200: 200 running"


def test_pace_and_time_left_follow_from_what_was_seen(api: FakeApi) -> None:
    reader = OverviewReader(Client(URL, TOKEN, transport=api), state=None, project=None)
    api.jobs = [job_view(1)]
    for now_s, step in enumerate(range(20, 121, 10)):
        api.jobs[0]["progress"] = {"step": step, "total_steps": 920, "epoch": 0}
        seen = reader.look(float(now_s))
    screen = Screen(io.StringIO(), {}, width=100, height=20)
    assert " 10  1m 20s " in frame(seen, screen, 0, away=False).plain


def test_once_prints_all_columns_to_a_pipe_and_json_what_was_answered(api: FakeApi, run: Run) -> None:
    code, out, err = run("top", "--once")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("jobs: 1 queued, 1 starting, 1 running")
    assert lines[1] == "cluster: 1 node, 4 CPUs, 20.8 GB of memory"
    assert lines[2].split() == ["ID", "NAME", "STATE", "STEP", "DONE", "WORKERS", "AGE", "REASON"]
    assert lines[3].split()[:3] == [job_id(STATES.index(State.RUNNING)), "digits-2", "running"]
    assert run("top")[1].splitlines()[0] == lines[0], "a pipe is not drawn on"
    body = json.loads(run("top", "-o", "json")[1])
    assert (len(body["jobs"]), body["cluster"]["cpus"]) == (len(STATES), 4)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("environ", [{}, {"LC_ALL": "C"}], ids=["unicode", "ascii"])
@pytest.mark.parametrize("away", [False, True], ids=["answered", "away"])
def test_a_page_fits_the_terminal(width: int, environ: dict[str, str], away: bool) -> None:
    evil = "\x1b]0;owned\x07" + "waits for others " * 9
    why = {"code": "no_capacity", "message": evil, "hint": ""}
    jobs = [
        JobView.model_validate(job_view(k, name="a-long-name-" * (k % 3 + 1), pending_reason=why))
        for k in range(30)
    ]
    trouble = {"reachable": False, "trouble": "Ray does not answer. " * 12}
    seen = Overview(jobs, trouble, {jobs[0].id: 12.5}, datetime.now(UTC))
    screen = Screen(io.StringIO(), environ, width=width, height=12)
    shown = frame(seen, screen, 22, away=away).plain
    lines = shown.splitlines()
    assert len(lines) == 12
    assert max(map(cell_len, lines)) <= width
    assert not set(shown) & set("\x1b\x07\r\x9b")
    assert environ == {} or shown.isascii()
    assert ("does not answer" in lines[-1]) is away
    assert away or lines[-1] == "q quits, arrows scroll: 23-30 of 30"
    assert lines[2].split()[:2] == (["ID", "NAME"] if width >= 130 else ["NAME", "STATE"])


def test_columns_that_matter_most_are_there_on_every_terminal() -> None:
    assert columns(40) == ["NAME", "STATE", "DONE", "LEFT"]
    assert set(columns(80)) - set(columns(60)) == {"STEPS/S"}
    assert set(columns(100)) - set(columns(80)) == {"REASON"}
    assert jobs_shown(2) == 1


ON_A_TERMINAL = """
import sys
import httpx
from fake_api import TOKEN, URL, FakeApi, job_view
from ringleader.cli.main import main
from ringleader.client import Client
class Away(FakeApi):
    def handle_request(self, request):
        # The second look fails, and the third is answered.
        if len(self.seen) == 2:
            self.faults.append(httpx.ConnectError("refused"))
        return super().handle_request(request)
api = Away(jobs=[job_view(1)], page=200)
sys.exit(main(["top"], connect=lambda: Client(URL, TOKEN, transport=api, patience_s=0)))
"""


def test_a_page_outlasts_an_outage_and_q_leaves_the_terminal_as_it_was() -> None:
    with PseudoTerminal(ON_A_TERMINAL, COLUMNS="80", LINES="10") as terminal:
        for shown in (b"q quits", b"does not answer", b"q quits"):
            terminal.read_to(shown)
        terminal.press(b"q")
        assert terminal.read_to_end() == 0
    told = terminal.shown
    assert told.rindex(b"\x1b[?25h") > told.rindex(b"q quits"), "the cursor is shown again"
    assert told.rindex(b"\x1b[?1049l") > told.rindex(b"q quits"), "what was there before is shown again"
