"""One gigabyte printed through the real stack: memory and disk stay bounded, and a job beside it goes on unharmed."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.whole_stack import Running, whole_stack

from ringleader.cli.stack.home import Home, read_json
from ringleader.client import Job
from ringleader.runtime.records.spool import MAX_BYTES
from ringleader.runtime.worker.output_capture import MAX_CHARACTERS

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
PRINTED = int(os.environ.get("LOUD_BYTES", "") or 1 << 30)
LENGTH, STEPS, PINGS, AHEAD, KEPT = 15_000, 64, 30, 3, 2000
WAIT_S = 420
FUNCTIONS = """
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

class Rows(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, row):
        return torch.ones(4), torch.ones(1)

def steps(session, number):
    net = session.model(torch.nn.Linear(4, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for step, batch in enumerate(session.batches(Rows(number))):
        yield step
        session.step(((net(batch[0]) - batch[1]) ** 2).mean())

def loud(session):
    for step in steps(session, session.params["steps"]):
        for _ in range(session.params["lines"]):
            print("x" * session.params["length"])

def quiet(session):
    for step in steps(session, session.params["pings"]):
        print(f"ping {step}", flush=True)
        heard = Path(session.params["folder"], str(step - session.params["ahead"]))
        while step >= session.params["ahead"] and not heard.exists():
            time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Running]:
    with whole_stack(settings={"RINGLEADER_LOGS_KEPT": str(KEPT)}) as running:
        yield running


class Watch:
    """The most that something came to while the block ran."""

    def __init__(self, read: Callable[[], int]) -> None:
        self.first = self.most = read()
        self._read = read
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self.most = max(self.most, self._read())


def resident(pid: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spooled(home: Path) -> int:
    """Bytes of all that waits for the control plane."""
    sizes = []
    for file in (home / "spool").rglob("*"):
        try:
            sizes.append(file.stat().st_size)
        except FileNotFoundError:  # it is over
            continue
    return sum(sizes)


def hear(job: Job, folder: Path) -> list[str]:
    """Follow the lines, and let the job go on as they come."""
    lines = []
    for line in job.logs(follow=True):
        if line.line.startswith("ping "):
            lines.append(line.line)
            (folder / line.line.removeprefix("ping ")).touch()
    return lines


def test_a_job_that_prints_a_gigabyte_harms_nobody(stack: Running, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    heard = tmp_path / "heard"
    heard.mkdir()
    common = {"working_dir": ".", "workers": {"min": 1, "max": 1}, "batch": {"global_size": 1}}
    lines = PRINTED // LENGTH // STEPS
    prints = {"lines": lines, "length": LENGTH, "steps": STEPS}
    pings = {"pings": PINGS, "folder": str(heard), "ahead": AHEAD}
    api = int(read_json(Home(stack.home).record("api"))["pid"])
    with Watch(lambda: resident(api)) as memory, Watch(lambda: spooled(stack.home)) as disk:
        loud, quiet = (
            stack.client.submit(
                {"name": name, "entrypoint": f"functions:{name}", "params": params, **common},
                working_dir=tmp_path,
            )
            for name, params in (("loud", prints), ("quiet", pings))
        )
        assert hear(quiet, heard) == [f"ping {n}" for n in range(PINGS)], (
            "each once, in order, none waited for long"
        )
        loud.wait(timeout=WAIT_S)
        quiet.wait(timeout=WAIT_S)
    print(f"API +{(memory.most - memory.first) >> 20} MB, spool at most {disk.most >> 20} MB")
    assert (loud.state, quiet.state, loud.result["steps"]) == ("succeeded", "succeeded", STEPS)
    assert memory.most - memory.first < 150 << 20
    assert disk.most < 4 * MAX_BYTES + 4 * MAX_CHARACTERS
    kept = list(loud.logs())
    assert 0 < len(kept) <= KEPT, "of what came through, the newest; how much does, is the machine's speed"
    assert any("it prints too fast" in line.line for line in kept)
    assert [e.type for e in quiet.events()][-1] == "job.succeeded"
