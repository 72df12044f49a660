"""The check of a program beside its job: when it runs, when it does not, and that it is never in the job's way."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import processes
from processes import children, is_alive
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from waiting import wait_for

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import RecordedOutput, SingleMember
from ringleader.train.program_check import background
from ringleader.train.program_check.background import CHECK, CPU_S, MOST_BYTES, WORK, CheckWorkspace
from ringleader.train.run import WorkerResult, run

ROWS, BATCH = 16, 4
PATIENCE_S = 90.0


def await_check() -> None:
    """One that is under way beside this job is over. There is none in its own process."""
    for thread in threading.enumerate():
        if thread.name == CHECK:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def network(session: Session) -> tuple[torch.nn.Linear, torch.optim.Optimizer, TensorDataset]:
    net = session.model(torch.nn.Linear(3, 2))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    points = torch.linspace(-1, 1, 3 * ROWS).reshape(ROWS, 3)
    return net, optimizer, TensorDataset(points, (points[:, 0] > 0).long())


def loop(session: Session, net: torch.nn.Linear, data: TensorDataset) -> None:
    for x, y in session.batches(data):
        session.step(F.cross_entropy(net(x), y))


def good(session: Session) -> None:
    net, optimizer, data = network(session)
    session.on_commit(await_check)
    for number in range(5):
        loop(session, net, data)
        print(f"a line of the program: {number}")
        optimizer.param_groups[0]["lr"] *= 0.9


def one_loop(session: Session) -> None:
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(os.getpid()))
    net, _, data = network(session)
    session.on_commit(await_check)
    loop(session, net, TensorDataset(*data[order]))


def writes(session: Session) -> None:
    """It goes by a file that it writes, and links to it."""
    net, optimizer, data = network(session)
    session.on_commit(await_check)
    file = Path(session.params["file"])
    for _ in range(5):
        loop(session, net, data)
        with file.open("a") as lines:
            lines.write("a line\n")
        length = len(file.read_text())
        optimizer.param_groups[0]["lr"] = 1 / length
        if session.global_step > 2 * ROWS // BATCH:
            file.with_name(f"link-{session.global_step}").symlink_to(file)


def ends_elsewhere(session: Session) -> None:
    """The process of the check is not the job's."""
    if os.getpid() != session.params["pid"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    good(session)


def raises_elsewhere(session: Session) -> None:
    net, _, data = network(session)
    session.on_commit(await_check)
    for _ in range(5):
        losses = []
        for x, y in session.batches(data):
            loss = F.cross_entropy(net(x), y)
            session.step(loss)
            losses.append(loss.item())
        assert len(losses) > 1


def computes_elsewhere(session: Session) -> None:
    while os.getpid() != session.params["pid"]:
        pass
    good(session)


def hangs_elsewhere(session: Session) -> None:
    """The check never ends, and says so in its own folder. What begins behind it waits for that."""
    if os.getpid() != session.params["pid"]:
        Path("hangs").write_text(str(os.getpid()))
        signal.pause()
    net, _, data = network(session)
    sign = Path(session.params["file"]).with_name("check") / WORK / "hangs"
    session.on_commit(
        lambda: None if session.global_step < 2 else wait_for("a check that hangs", sign.exists)
    )
    loop(session, net, data)


@dataclass
class Job:
    """A job of one process, and what came of it."""

    place: Path
    recorded: RecordedOutput = field(default_factory=RecordedOutput)
    checks: int = 0
    before: frozenset[int] = field(default_factory=lambda: frozenset(children(os.getpid())))

    def spec(self, function: Callable[[Session], None], **more: Any) -> JobSpec:
        source = {
            "name": "beside",
            "entrypoint": f"{__name__}:{function.__name__}",
            "workers": {"min": 1, "max": 1},
            "batch": {"global_size": BATCH},
            "params": {"file": str(self.place / "file"), "pid": os.getpid()},
            "sync": "ring",
        }
        return JobSpec.parse(source | more)

    def run(
        self,
        function: Callable[[Session], None],
        after_s: float = 0.0,
        niceness: int = 0,
        cpu_s: int = CPU_S,
        most_bytes: int = MOST_BYTES,
        **more: Any,
    ) -> WorkerResult:
        return run(
            spec=self.spec(function, **more),
            function=function,
            coordinator=SingleMember(1),
            sink=self.recorded,
            server=False,
            artifacts=self.place,
            beside=CheckWorkspace(self.make, after_s, niceness, cpu_s, most_bytes),
        )

    def make(self) -> Path:
        self.checks += 1
        folder = self.place / "check"
        folder.mkdir()
        return folder

    @property
    def told(self) -> list[tuple[str, bool]]:
        events = [data for kind, data in self.recorded.events if kind == "program.differs"]
        assert all(data["cure"].startswith("nothing has gone wrong yet: ") for data in events)
        return [(data["variable"], data["beforehand"]) for data in events]

    @property
    def left(self) -> list[Any]:
        """What a check has left behind."""
        return [*set(children(os.getpid())) - self.before, *self.place.glob("check")]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def said(captured: pytest.CaptureFixture[str]) -> list[str]:
    lines = captured.readouterr().out.splitlines()
    return [line.removeprefix("ringleader: ") for line in lines if line.startswith("ringleader: ")]


SHORT = (
    "the job was too short for the background check of its program; `ringleader check` does it beforehand."
)
NOT = "the background check of the program is skipped: "
CHECKED = "background check: ran the lines before session call {} as a worker that joins later would"


def test_a_good_program_is_checked_at_the_top_and_behind_a_few_calls(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    assert job.run(good).reproducible
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if "a line of" in line] == [
        f"a line of the program: {n}" for n in range(5)
    ]
    assert [line for line in lines if "background check" in line] == [
        f"ringleader: {CHECKED.format(call)}: found no differences." for call in (0, 3)
    ]
    assert (job.checks, job.told, job.left) == (2, [], [])


def test_a_program_of_one_loop_is_checked_at_its_top(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    finished = job.run(one_loop)
    assert (job.told, job.checks, job.left) == ([("order", True), ("data.tensors", True)], 1, [])
    assert "order (test_beside.py:" in finished.reproducible_why
    assert not finished.reproducible
    assert "nothing has gone wrong yet, but the program's order" in capsys.readouterr().out


def test_what_only_a_later_worker_raises_is_told_and_changes_no_bits(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.run(raises_elsewhere).reproducible
    assert job.told == [("an exception", True)]
    [raises] = [data["raises"] for kind, data in job.recorded.events if kind == "program.differs"]
    assert raises
    assert "a worker that joins later would raise here (test_beside.py:" in capsys.readouterr().out


def test_it_changes_no_file_and_ends_where_the_program_would(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run(writes)
    assert (job.place / "file").read_text() == 5 * "a line\n"
    ended = f"{CHECKED.format(3)}, up to test_beside.py:"
    where = f".symlink_to(file), which changes {job.place / 'link-12'}"
    told = [line for line in said(capsys) if line.startswith(ended)]
    assert len(told) == 1
    assert where in told[0]
    assert job.told == [("length", True), ("optimizer.param_groups[0]['lr']", True)]
    assert (job.checks, job.left) == (2, [])


def test_a_check_that_crashes_is_said_and_nothing_else(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.run(ends_elsewhere).reproducible
    why = "the background check of the program failed: its process ended with code -11"
    assert said(capsys) == [why, why]
    assert (job.told, job.left) == ([], [])


def test_a_check_has_a_deadline(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "DEADLINE_S", 0.0)
    assert job.run(good).reproducible
    why = "the background check of the program failed: it took more than 0 s"
    assert said(capsys) == [why, why]
    assert (job.told, job.left) == ([], [])


def test_a_check_that_computes_for_too_long_ends_and_says_so(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.run(computes_elsewhere, cpu_s=1).reproducible
    why = "the background check of the program failed: it took more than 1 s of CPU time"
    assert said(capsys) == [why, why]
    assert (job.told, job.left) == ([], [])


def test_a_state_of_some_size_is_copied_into_memory_that_was_made_beside_training(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "AT_ONCE_BYTES", 0)
    makers: set[str] = set()
    make = background._Room._make
    monkeypatch.setattr(
        background._Room, "_make", lambda room: makers.add(threading.current_thread().name) or make(room)
    )
    assert job.run(good).reproducible
    assert makers == {CHECK}
    assert [line for line in said(capsys) if "background check" in line] == [
        f"{CHECKED.format(call)}: found no differences." for call in (0, 3)
    ]
    assert (job.checks, job.told, job.left) == (2, [], [])


def test_where_there_is_no_memory_for_a_copy_that_is_said(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "AT_ONCE_BYTES", -1)
    monkeypatch.setattr(background, "SPARE_BYTES", 1 << 60)
    assert job.run(good).reproducible
    (line,) = said(capsys)
    assert line.startswith(f"{NOT}not enough memory for a copy of the state (")
    assert (job.checks, job.left) == (0, [])


def test_a_job_that_is_over_ends_the_check_and_says_so(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.run(hangs_elsewhere).reproducible
    why = "the job ended before the background check of its program did; the check has no result."
    assert said(capsys) == [why]
    assert (job.checks, job.left) == (1, [])


def test_no_check_outlives_a_worker_that_is_killed(job: Job) -> None:
    sign = job.place / "check" / WORK / "hangs"
    worker = processes().Process(target=forever, args=(job.place,))
    worker.start()
    child = int(wait_for("a check that hangs", lambda: sign.exists() and sign.read_text()))
    assert worker.pid is not None
    assert children(worker.pid) == [child]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(PATIENCE_S)
    wait_for("an end of the check", lambda: not is_alive(child))


def forever(place: Path) -> None:
    Job(place).run(waits_for_its_check)


def waits_for_its_check(session: Session) -> None:
    session.on_commit(await_check)
    hangs_elsewhere(session)


def test_a_job_may_ask_for_none(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.run(one_loop, debug={"check": False})
    assert (job.checks, job.told, said(capsys)) == (0, [], [])


def test_a_job_that_is_over_soon_is_not_checked_and_that_is_said(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run(one_loop, after_s=3600.0)
    assert said(capsys) == [SHORT]
    assert (job.checks, job.told) == (0, [])


def test_a_large_state_is_not_copied_and_that_is_said(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.run(good, most_bytes=0)
    assert [line.partition(" MiB")[0] for line in said(capsys)] == [f"{NOT}the state of 0"]
    assert (job.checks, job.left) == (0, [])


class Lines(RecordedOutput):
    """The output of a member, with the lines of its program's bodies that are told."""

    def __init__(self) -> None:
        super().__init__()
        self.told = True
        self.lines: list[str] = []

    def within(self, *, told: bool = True) -> None:
        self.told = told

    def add(self, line: str) -> None:
        self.lines += [line] if self.told else []


LINES = Lines()


def counts(session: Session) -> None:
    net, _, data = network(session)
    for epoch in range(2):
        for turn, (x, y) in enumerate(session.batches(data)):
            LINES.add(f"{epoch}: {turn}")
            session.step(F.cross_entropy(net(x), y))
            LINES.add(f"behind step {session.global_step}: {session.loss:.9f}")


@pytest.mark.parametrize("most_bytes", [0, MOST_BYTES])
def test_the_first_step_of_a_loop_in_the_text_is_computed_twice_and_prints_once(
    most_bytes: int, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.LINES", lines := Lines())
    job.recorded = lines
    job.run(counts, most_bytes=most_bytes, after_s=3600.0)
    turns = ["0: 0", "0: 2", "0: 3", "0: 4"] if most_bytes == 0 else [f"0: {turn}" for turn in range(4)]
    turns += [f"1: {turn}" for turn in range(4)]
    assert lines.lines[::2] == turns
    behind = [f"behind step {n + 1}: {lines.values[n + 1]['loss']:.9f}" for n in range(2 * ROWS // BATCH)]
    assert lines.lines[1::2] == behind


def test_a_short_job_without_a_process_says_what_it_has_in_its_place(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run(one_loop, most_bytes=0, after_s=3600.0)
    (line,) = said(capsys)
    assert line.startswith(NOT)
    assert "the first step of each loop is computed twice instead" in line


def test_of_a_step_that_is_not_computed_twice_nothing_is_said(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers that lease items, whose steps have one order, do not compute any twice."""
    sync = {
        "intra_node": "parameter_server",
        "inter_node": "parameter_server",
        "consistency": "ssp",
        "staleness": 0,
    }
    job.run(one_loop, most_bytes=0, sync=sync)
    (line,) = said(capsys)
    assert "twice" not in line


class Kept:
    """A kept object as large as the weights."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.mean = {name: value.clone() for name, value in net.state_dict().items()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self.mean)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.mean = dict(state)


WIDE = 20_000
"""Weights, so that kept objects of as many are none of the small ones."""


def keeps(session: Session) -> None:
    net = session.model(torch.nn.Linear(WIDE, 1))
    session.optimizer(torch.optim.Adam(net.parameters()))
    session.keep("mean", Kept(net))
    points = torch.linspace(-1, 1, ROWS).unsqueeze(1).expand(ROWS, WIDE)
    for (x,) in session.batches(TensorDataset(points)):
        session.step(net(x).square().mean())


def test_a_state_that_grows_above_the_limit_in_its_first_step_is_counted_as_it_will_be(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights and a kept object of that size, and two numbers for each weight."""
    job.run(keeps, most_bytes=7 * WIDE * 2)
    (line,) = said(capsys)
    assert "the first step of each loop is computed twice instead" in line


def test_a_mode_that_promises_no_bits_is_not_checked_and_that_is_said(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.run(good, sync={"intra_node": "ring", "inter_node": "ring", "reproducible": False})
    assert said(capsys) == [f"{NOT}this sync mode is not reproducible."]
    assert job.checks == 0


def test_a_folder_that_cannot_be_made_is_said(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    (job.place / "check").write_text("in the way")
    job.run(good)
    assert "FileExistsError" in said(capsys)[0]
    assert (job.place / "check").read_text() == "in the way"
