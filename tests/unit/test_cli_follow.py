"""Following a job: what is known of its pace, what is drawn of it on which terminal, and what else is said."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_api import AT, SUCCEEDED, TOKEN, URL, FakeApi, job_id, job_view, log, sse, stream
from pseudo_terminal import PseudoTerminal
from rich.cells import cell_len

from ringleader.cli.main import main
from ringleader.cli.terminal.pace import Pace, left_s
from ringleader.cli.terminal.progress import JobSnapshot, drawn, sentence
from ringleader.cli.terminal.screen import Screen
from ringleader.client import Client
from ringleader.wire.views import JobView

Run = Callable[..., tuple[int, str, str]]
CODE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
WIDTHS = (40, 60, 80, 120, 200)
WAITING = {
    "code": "no_capacity",
    "message": "3 CPUs are free, 4 needed;\n" + "waits for others " * 8,
    "hint": "",
}


def view(step: int = 7, total: int | None = 920, **changes: Any) -> JobView:
    progress = {"step": step, "total_steps": total, "epoch": 0}
    return JobView.model_validate(job_view(1, progress=progress, **changes))


@pytest.fixture
def api() -> FakeApi:
    return FakeApi(jobs=[job_view(1)])


@pytest.fixture
def run(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments, connect=lambda: Client(URL, TOKEN, transport=api, patience_s=0))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def paced(*looks: tuple[float, JobView]) -> float | None:
    pace = Pace()
    for now_s, seen in looks:
        pace.look(now_s, seen)
    return pace.steps_per_s


def test_the_pace_is_that_of_the_last_minute() -> None:
    slow = [(float(t), view(t)) for t in range(100)]
    fast = [(100.0 + t, view(100 + 10 * t)) for t in range(61)]
    assert paced(*slow) == 1
    assert paced(*slow, *fast) == 10


def test_a_pace_is_not_known_before_steps_were_seen_to_settle_for_a_while() -> None:
    assert paced() is None
    assert paced((0, view(5)), (100, view(5))) is None, "no step"
    assert paced((0, view(5)), (1, view(6)), (2, view(9))) is None, "too short"
    assert paced((0, view(5)), (100, view(5)), (104, view(9))) == 1, (
        "what was before the first step counts nothing"
    )


def test_a_job_that_stands_still_slows_down_and_then_has_no_pace() -> None:
    moved = [(0.0, view(0)), (10.0, view(20))]
    assert paced(*moved, (20, view(20))) == 1
    assert paced(*moved, *((10.0 + t, view(20)) for t in range(71))) is None


@pytest.mark.parametrize("back", [view(3), view(20, state="paused"), view(20, state="queued")])
def test_a_job_that_goes_back_or_waits_has_no_pace(back: JobView) -> None:
    assert paced((0, view(0)), (10, view(20)), (11, back)) is None


def test_the_time_left_is_shown_only_where_steps_and_pace_are_known() -> None:
    assert left_s(view(20, 100), 2.0) == 40
    assert left_s(view(120, 100), 2.0) == 0
    assert left_s(view(20, None), 2.0) is None
    assert left_s(view(20, 100), None) is None
    assert left_s(view(20, 100, state="recovering"), 2.0) is None
    assert "about 40s left" in sentence(JobSnapshot(view(20, 100), 2.0))
    assert "left" not in sentence(JobSnapshot(view(20, None), 2.0))


def lines(seen: JobSnapshot, width: int, environ: dict[str, str]) -> list[str]:
    stream = io.StringIO()
    screen = Screen(stream, environ, width=width)
    screen.print(drawn(seen, screen))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("environ", [{}, {"LANG": "C"}], ids=["unicode", "ascii"])
@pytest.mark.parametrize(
    "seen",
    [
        JobSnapshot(view(123_456, 1_000_000, attempt=3), 12.5, 1234.5, 0.31),
        JobSnapshot(view(7, None), 12.5),
        JobSnapshot(view(0, None, state="queued", pending_reason=WAITING)),
        JobSnapshot(view(7, 920, state="recovering")),
    ],
    ids=["known", "endless", "queued", "unknown"],
)
def test_the_drawing_has_two_lines_that_fit(width: int, environ: dict[str, str], seen: JobSnapshot) -> None:
    shown = lines(seen, width, environ)
    assert len(shown) == 2
    assert max(map(cell_len, shown)) <= width
    assert seen.view.state in shown[0]
    assert not set("".join(shown)) & set("\x1b\x07\r\x9b")
    assert environ == {} or "".join(shown).isascii()


def test_what_matters_most_is_kept_where_there_is_little_room() -> None:
    seen = JobSnapshot(view(420, 920), 5.0, 12_345.6, 0.25)
    assert lines(seen, 40, {})[0].endswith("420/920  1m 40s left")
    assert lines(seen, 40, {})[1] == "loss 0.25  12,346 rows/s"
    assert lines(seen, 80, {})[0].endswith("420/920  45%  about 1m 40s left")
    assert lines(seen, 80, {})[1] == "loss 0.25  12,346 rows/s  3 of 2-3 workers"


def test_without_a_terminal_each_state_is_one_plain_line(
    api: FakeApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    api.points["loss"] = [{"step": 7, "value": 0.25, "at": AT, "generation": 1}]
    queued = {"state": "queued", "pending_reason": WAITING | {"message": "3 CPUs are free"}}
    running = {"state": "running", "pending_reason": None}
    api.history[job_id(1)] = [queued, queued, running, running, SUCCEEDED]
    code, out, err = run("wait", job_id(1))
    assert (code, out) == (0, f"{job_id(1)} succeeded at step 7/920, accuracy 0.98\n")
    assert err.splitlines() == [
        "queued: 3 CPUs are free",
        "running, step 7/920, loss 0.25, 3 of 2-3 workers",
    ]


def test_a_program_that_waits_is_told_the_end_alone(api: FakeApi, run: Run) -> None:
    api.feeds["logs"] = [log(1)]
    api.history[job_id(1)] = [{}, {}, SUCCEEDED]
    code, out, err = run("wait", job_id(1), "-o", "json")
    assert (code, out.count("\n"), err) == (0, 1, "")
    api.history[job_id(1)] = [{}, SUCCEEDED]
    code, out, err = run("wait", job_id(1), "--follow", "-o", "json")
    assert (code, out.count("\n"), err) == (0, 1, "03:04:05 w0         line 1\n")


def test_submit_follow_prints_each_log_line_once_until_the_end(
    api: FakeApi, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: digits\nentrypoint: train:main\n")
    api.feeds["logs"] = [log(seq) for seq in range(1, 6)]
    api.history[job_id(2)] = [{"state": "running"}, {}, {}, SUCCEEDED]
    code, out, _ = run("submit", str(file), "--follow")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()[:-1]] == ["1", "2", "3", "4", "5"]
    assert "succeeded" in out.splitlines()[-1]
    assert run("submit", str(file), "--follow", "--dry-run")[0] == 2


def test_an_outage_is_said_once_and_the_following_goes_on(api: FakeApi, run: Run) -> None:
    gone = [httpx.ConnectError("refused"), httpx.ConnectError("refused")]
    api.history[job_id(1)] = [{}, *gone, {}, SUCCEEDED]
    api.jobs[0]["name"] = "spiral"  # found in the list, not looked at
    code, _, err = run("wait", "spiral", "--follow")
    assert code == 0
    assert err.splitlines()[1:] == [
        f"the control plane does not answer; {job_id(1)} keeps running. Trying again.",
        "the control plane answers again.",
    ]


def test_an_outage_is_said_once_while_log_lines_are_followed(api: FakeApi, run: Run) -> None:
    gone = [httpx.ConnectError("refused"), httpx.ConnectError("refused")]
    api.history[job_id(1)] = [{}, {}, *gone, SUCCEEDED]
    api.streams = [stream(sse(log(1, "one")), breaks=True)]
    api.feeds["logs"] = [log(1, "one"), log(2, "two")]
    code, out, err = run("logs", "--follow", job_id(1))
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines()] == ["one", "two"]
    assert err.splitlines() == [
        f"the control plane does not answer; {job_id(1)} keeps running. Trying again.",
        "the control plane answers again.",
    ]


ON_A_TERMINAL = """
import signal
import sys
from fake_api import TOKEN, URL, FakeApi, job_id, job_view, log
from ringleader.cli.main import main
from ringleader.client import Client
# Ignored where a shell has begun the tests in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
api = FakeApi(jobs=[job_view(1)], feeds={"logs": [log(1, "evil \\x1b]0;owned\\x07")]})
sys.exit(main(["wait", job_id(1), "--follow"], connect=lambda: Client(URL, TOKEN, transport=api)))
"""


def test_on_a_terminal_ctrl_c_leaves_the_job_running_and_the_terminal_as_it_was() -> None:
    with PseudoTerminal(ON_A_TERMINAL, COLUMNS="40", LANG="C.UTF-8") as terminal:
        terminal.read_to(b"of 2-3 workers")
        terminal.interrupt()
        assert terminal.read_to_end() == 130
    shown = terminal.shown.decode()
    assert "7/920" in shown
    assert r"evil \x1b]0;owned\x07" in shown
    assert "\x1b]" not in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is shown again"
    words = " ".join(CODE.sub("", shown).split())
    assert (
        f"detached; {job_id(1)} keeps running. Wait again with `ringleader wait {job_id(1)} --follow`"
        in words
    )
