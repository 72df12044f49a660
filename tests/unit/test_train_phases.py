"""What the training thread says it does while it does it: the supervisor judges by it who hangs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from ringleader.runtime.messages import OWN, WORKING
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import RecordedOutput, SingleMember, alone
from ringleader.train.run import run


class PhaseKept(RecordedOutput):
    """Remembers what the training thread said it does."""

    phase = ""

    def progress(self, *, step: int, total_steps: int | None, epoch: int, phase: str, rows: int) -> None:
        self.phase = phase


class PhaseAtRead(Dataset[dict[str, torch.Tensor]]):
    """Rows that note in which phase they are read."""

    def __init__(self, sink: PhaseKept) -> None:
        self.sink = sink
        self.seen: list[str] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        self.seen.append(self.sink.phase)
        return {"x": torch.ones(3)}


@pytest.mark.parametrize(
    "sync",
    [
        {"intra_node": "ring", "inter_node": "ring", "reproducible": False},
        {"intra_node": "local_sgd", "inter_node": "local_sgd", "inner_steps": 2},
        {"intra_node": "parameter_server", "inter_node": "parameter_server", "consistency": "async"},
        {"intra_node": "token_ring", "inter_node": "token_ring"},
    ],
    ids=["ring", "local_sgd", "async", "token_ring"],
)
def test_rows_are_read_in_a_phase_that_is_watched(sync: dict[str, Any], tmp_path: Path) -> None:
    """A read that hangs is then noticed after stall_timeout_s; waits for others are not judged."""
    sink = PhaseKept()
    rows = PhaseAtRead(sink)

    def train(session: Session) -> None:
        net = session.model(torch.nn.Linear(3, 1))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for batch in session.batches(rows):
            session.step(net(batch["x"]).mean())

    spec = JobSpec.parse(
        {"name": "read", "entrypoint": "read:train", "batch": {"global_size": 6}, "sync": sync}
    )
    run(
        spec=alone(spec),
        function=train,
        coordinator=SingleMember(spec.shards),
        sink=sink,
        server=False,
        artifacts=tmp_path,
    )
    assert len(rows.seen) == 24
    assert set(rows.seen) <= WORKING, rows.seen


def test_the_programs_own_code_runs_in_phases_that_are_watched_while_others_wait(tmp_path: Path) -> None:
    """In an optimizer, a callback, behind a step, between two calls: a hang there holds up the others."""
    sink = PhaseKept()
    told: dict[str, set[str]] = {}

    def note(place: str) -> None:
        told.setdefault(place, set()).add(sink.phase)

    def train(session: Session) -> None:
        net = session.model(torch.nn.Linear(3, 1))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        optimizer.register_step_pre_hook(lambda *_: note("optimizer"))
        session.on_commit(lambda: note("callback"))

        def score(batch: Any) -> dict[str, torch.Tensor]:
            note("score")
            return {"mean": net(batch["x"]).mean(dim=1)}

        for _ in range(2):
            for batch in session.batches(PhaseAtRead(sink)):
                session.step(net(batch["x"]).mean())
                note("behind a step")
            note("behind a loop")
            session.evaluate(PhaseAtRead(sink), score)
            note("behind an evaluation")
        for batch in session.batches(PhaseAtRead(sink)):
            session.step(net(batch["x"]).mean())
            break
        note("behind a break")

    spec = JobSpec.parse(
        {"name": "own", "entrypoint": "own:train", "workers": {"max": 1}, "batch": {"global_size": 6}}
    )
    run(
        spec=spec,
        function=train,
        coordinator=SingleMember(spec.shards),
        sink=sink,
        server=False,
        artifacts=tmp_path,
    )
    assert told.pop("score") == {"evaluate"}
    assert {place: phases <= OWN for place, phases in told.items()} == dict.fromkeys(told, True), told
    assert len(told) == 6
    assert sink.phase == "finish"
