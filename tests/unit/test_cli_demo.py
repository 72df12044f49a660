"""The demonstration's judgement: what it counts, and which broken promise it names."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_api import AT, RESULT, TOKEN, URL, FakeApi, event, job_id, job_view

from ringleader.cli.demo import ledger
from ringleader.cli.demo.findings import Findings, broken_promises, changes, describe, gather
from ringleader.cli.demo.kill import DemoStuck, KilledWorker, kill_one
from ringleader.client import Client, Worker
from ringleader.client.records import Result
from ringleader.wire import views

VICTIM = Worker("w1", "worker", 1, 12, "n", "running", 1, (1, 2))
EPOCHS = 40
STEPS = 23 * EPOCHS
UNDISTURBED = RESULT["weights_sha256"]


def _entries() -> list[tuple[int, int]]:
    """An undisturbed run: 40 epochs of 1,437 rows, 64 a step."""
    return [
        (epoch * 23 + at // 64 + 1, (at * 7 + epoch) % 1437) for epoch in range(EPOCHS) for at in range(1437)
    ]


def _found(tmp_path: Path, entries: list[tuple[int, int]] | None = None, **changed: Any) -> Findings:
    """Findings of a run that kept every promise, with some of them changed."""
    table = list(entries if entries is not None else _entries())
    path = tmp_path / "l.parquet"
    pq.write_table(
        pa.table({"step": [s for s, _ in table], "shard": [0] * len(table), "row": [r for _, r in table]}),
        path,
    )
    worlds = changed.pop("worlds", [3, 3, 2, 2, 3])
    result = RESULT | changed.pop("result", {})
    after = changed.pop("after", {"w0": 11, "w2": 13, "w3": 14})
    api = FakeApi(
        jobs=[
            job_view(
                spec={"batch": {"global_size": 64}},
                progress={"step": STEPS, "total_steps": STEPS, "epoch": 39},
            )
        ],
        feeds={
            "events": [
                event(1, "worker.lost", worker="w1", step=401),
                event(2, "recovered", total_s=0.05, redo_s=0.02),
            ]
        },
        artifacts={"ledger.parquet": path.read_bytes()},
        points={
            "world_size": [{"step": s, "value": v, "at": AT, "generation": 1} for s, v in enumerate(worlds)],
            "samples_per_s": [{"step": 1, "value": 5000.0, "at": AT, "generation": 1}],
        },
    )
    job = Client(URL, TOKEN, transport=api).job(job_id(1))
    kill = KilledWorker(VICTIM, 400, 400, {"w0": 11, "w1": 12, "w2": 13}, after)
    return gather(job, Result.of(views.Result.model_validate(result)), kill, tmp_path, UNDISTURBED)


def test_a_run_that_kept_every_promise_is_said_to(tmp_path: Path) -> None:
    found = _found(tmp_path)
    assert broken_promises(found) == []
    table = describe(found)
    for fact in (
        "0.980",
        "w1 (rank 1, pid 12) at step 401",
        "50 ms",
        "0 of 920",
        "57,480",
        "w0 pid 11 → 11",
        "3 → 2 → 3",
    ):
        assert fact in table


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"result": {"scores": {"accuracy": 0.94}}}, "accuracy on held-out rows is 0.940"),
        ({"result": {"scores": {}}}, "accuracy"),
        ({"entries": [e for e in _entries() if e[0] != 500]}, "1 of 920 steps are missing"),
        ({"entries": _entries()[:-1]}, "0 rows were repeated and 1 skipped"),
        ({"entries": [*_entries(), _entries()[100]]}, "1 rows were repeated and 0 skipped"),
        ({"entries": [*_entries()[1:], (1, 1437)]}, "1 rows were repeated and 1 skipped"),
        ({"result": {"steps": 919}}, "919 ran"),
        ({"result": {"weights_sha256": "cd" * 32}}, "those of a run without a kill abab"),
        ({"after": {"w0": 99, "w2": 13, "w3": 14}}, "w0 was restarted: its pid was 11 and is now 99"),
        ({"after": {"w2": 13, "w3": 14}}, "w0 was restarted: its pid was 11 and is now none"),
        ({"worlds": [3, 2]}, "no replacement"),
        ({"worlds": [3]}, "no replacement"),
        ({"worlds": []}, "no replacement"),
    ],
)
def test_a_broken_promise_is_named(changed: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    assert any(sentence in broken for broken in broken_promises(_found(tmp_path, **changed)))


def test_only_changes_of_the_world_are_shown() -> None:
    assert changes([3, 3, 2, 2, 3]) == (3, 2, 3)
    assert changes([]) == ()


def test_a_run_that_ended_within_an_epoch_is_judged_by_its_steps() -> None:
    count = ledger.tally([(1, 0), (1, 1), (2, 2)], steps=2, rows=10, batch=2)
    assert count.clean
    assert not ledger.tally([(1, 0), (1, 0)], steps=1, rows=10, batch=2).clean


def test_a_job_that_never_runs_is_an_error_that_says_where_it_stands() -> None:
    api = FakeApi(
        jobs=[
            job_view(state="failed", reason={"code": "no_step", "message": "no step was taken", "hint": ""})
        ]
    )
    with pytest.raises(DemoStuck, match="no step was taken"):
        kill_one(Client(URL, TOKEN, transport=api).job(job_id(1)), seed=1, world=3)
