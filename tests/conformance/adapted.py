"""What the tests of adapters share: plays of an adapted program, and a library's own run in the session's order of
rows."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cast import Cast
from faults import FaultPlan
from forks import processes
from play import Play
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import Sampler

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import RecordedOutput, run_local
from ringleader.train.program_check.runs import check
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.run import WEIGHTS, WorkerResult, function_of

BATCH, SHARDS, EPOCHS = 16, 4, 3
Program = Callable[[Session], None]


def job(sync: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "adapted",
            "entrypoint": "adapted:train",
            "workers": {"min": 2, "max": 3},
            "batch": {"global_size": BATCH, "logical_shards": SHARDS},
            "checkpoint": {"every_steps": None},
            "sync": sync,
        }
    )


SPEC = job("ring")
SERVERS = job({"intra_node": "parameter_server", "inter_node": "parameter_server", "servers": 2})


class SessionOrder(Sampler[int]):
    """The rows of one epoch after the other in the order of a session's loops, for a library's own loader."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._epoch = 0

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        epoch = Epoch.shuffled(
            rows=self._rows, batch=BATCH, shards=SHARDS, seed=SPEC.seed, epoch=self._epoch, shuffle=True
        )
        self._epoch += 1
        return iter(epoch.order.tolist())


def alone(
    program: Program | None, folder: Path, spec: JobSpec = SPEC
) -> tuple[WorkerResult, dict[str, Tensor], RecordedOutput]:
    """One process: the result, the weights, and what it reported. Without a program that of the job file runs."""
    torch.set_num_threads(1)
    result, told = run_local(spec, program or function_of(spec), folder)
    return result, load_file(folder / WEIGHTS), told


def disturbed(program: Program | None, steps: int, folder: Path, spec: JobSpec = SPEC) -> Play:
    """Three workers, of which one is killed in the middle and another one leaves later."""
    # Where there are servers, these have the first names.
    faults = FaultPlan().kill("w3" if spec.sync.server_count else "w1", at_step=steps // 3 + 1)
    faults = faults.resize(at_step=2 * steps // 3, workers_min=2, workers_max=2)
    play = Cast(spec, program, faults, artifacts=folder).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert {finished.reproducible_why for finished in play.finished.values()} == {""}
    assert play.reported("member.differed") == []
    assert max(play.worlds) == 3
    assert play.worlds[-1] == 2
    return play


def close(ours: dict[str, Tensor], theirs: dict[str, Any]) -> bool:
    """Whether the weights are equal but for the order of sums: a batch at once there, by slices here."""
    assert ours.keys() == theirs.keys()
    return all(torch.allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-6) for name in ours)


def differing(program: str | JobSpec, place: Path) -> list[dict[str, str]]:
    """What differs where the program runs once more as a joiner would run it: `ringleader check`'s two runs.

    Args:
        program: an entrypoint, or the job file with it.
    """
    spec = program if isinstance(program, JobSpec) else SPEC.model_copy(update={"entrypoint": program})
    found = []
    for again in (False, True):
        process = processes().Process(target=_checked, args=(spec, place, again))
        process.start()
        process.join()
        found += json.loads((place / f"{again}.json").read_text())
    return found


def _checked(spec: JobSpec, place: Path, again: bool) -> None:
    torch.set_num_threads(1)
    found = check(spec, place, again=again)
    (place / f"{again}.json").write_text(json.dumps(found))
