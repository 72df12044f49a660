"""A worker of a ring, killed at any place of a step and around it: no bit, no step, no row, whatever it was doing."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from test_server_backups import DATA, EPOCHS, NET, STEPS, check, lost
from threaded_cast import Shot, ThreadedCast
from torch import Tensor
from torch.nn import functional as F

from ringleader.checkpoint.folder import Folder
from ringleader.comm.schedules.schedule import RESULTS
from ringleader.exchange.side_channel import BUCKETS, STATE, SUM, WORD
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

STEP = 4
NEXT, JOINER = 1, 2
"""Ranks that a shot is aimed at: of three workers the second; of the two left and a joiner the third."""


def job(**changes: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "phases",
        "entrypoint": "phases:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": 16, "logical_shards": 4},
        "sync": {"intra_node": "ring", "inter_node": "ring", "algorithm": "direct"},
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


class Script:
    """The training function; `victim` dies at `place` of the step after `STEP`."""

    def __init__(self, victim: str = "", place: str = "") -> None:
        self._victim = victim
        self._place = place

    def __call__(self, session: Session) -> None:
        net = session.model(copy.deepcopy(NET))
        net[0].weight.register_hook(
            self._at(session, "backward")
        )  # the last gradient: others are on their way
        optimizers = [
            session.optimizer(torch.optim.SGD(net[0].parameters(), lr=0.1, momentum=0.9), clip_norm=0.05),
            session.optimizer(torch.optim.Adam(net[1:].parameters(), lr=0.01)),
        ]
        optimizers[0].register_step_pre_hook(self._at(session, "reduced"))
        optimizers[1].register_step_pre_hook(self._at(session, "half updated"))
        optimizers[1].register_step_post_hook(self._at(session, "updated"))
        session.on_commit(self._at(session, "committing", STEP + 1))

        def score(batch: Any) -> dict[str, Tensor]:
            return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

        for _ in range(EPOCHS):
            for x, y in session.batches(DATA):
                session.step(F.cross_entropy(net(x), y), mean_x=x.mean())
            session.evaluate(DATA, score)

    def _at(self, session: Session, place: str, step: int = STEP) -> Callable[..., None]:
        def reach(*_: Any) -> None:
            me = threading.current_thread().name
            if (me, place, session.global_step) == (self._victim, self._place, step):
                session._member.coordinator.die()  # type: ignore[attr-defined]

        return reach


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one process that computes every shard itself."""
    return run_local(job(), Script(), tmp_path_factory.mktemp("alone"))[0].digest


def play(
    folder: Path,
    faults: FaultPlan | None = None,
    *shots: Shot,
    script: Script | None = None,
    **changes: Any,
) -> Play:
    return ThreadedCast(job(**changes), script or Script(), faults or FaultPlan(), folder, shots=shots).play()


def shot(worker: str, peer: int, tag: int, nth: int, *, sends: bool = True, world: int = 3) -> Shot:
    """At a transfer with the worker of that rank."""
    return Shot(worker, peer - world, tag, nth, sends)


PLACES = ("backward", "reduced", "half updated", "updated", "committing")


@pytest.mark.parametrize(("victim", "place"), [*(("w0", place) for place in PLACES), ("w2", "reduced")])
def test_a_worker_killed_at_any_place_of_its_step_costs_no_bit(victim, place, alone, tmp_path: Path) -> None:
    done = play(tmp_path, script=Script(victim, place))
    check(done, alone)
    assert lost(done) == [victim]


BETWEEN = [(0, "parked"), (0, "exchange"), (STEP, "forward"), (STEP, "exchange"), (STEP, "committed")]


@pytest.mark.parametrize(("at_step", "phase"), BETWEEN)
def test_a_worker_killed_between_the_parts_of_a_step_costs_no_bit(
    at_step, phase, alone, tmp_path: Path
) -> None:
    check(play(tmp_path, FaultPlan().kill("w1", at_step=at_step, phase=phase)), alone)


def test_a_worker_killed_during_a_recovery_costs_no_bit(alone, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w0", at_step=STEP).kill("w2", at_step=STEP, phase="parked")
    done = play(tmp_path, faults)
    check(done, alone)
    assert sorted(lost(done)) == ["w0", "w2"]


MOMENTS = {
    "its partial sums leave": shot("w1", 0, BUCKETS, STEP),
    "the sums come": shot("w1", 0, BUCKETS + RESULTS, STEP, sends=False),
    "its word leaves": shot("w1", 2, WORD, STEP),
    "the words come": shot("w1", 2, WORD, STEP, sends=False),
    "an evaluation is summed": shot("w1", 0, SUM, 0),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=list(MOMENTS))
def test_a_worker_killed_in_the_middle_of_an_exchange_costs_no_bit(moment, alone, tmp_path: Path) -> None:
    done = play(tmp_path, None, moment)
    check(done, alone)
    assert lost(done) == ["w1"]


@pytest.mark.parametrize("nth", [0, 1])
@pytest.mark.parametrize("victim", ["the donor", "the joiner"])
def test_a_donor_or_a_joiner_killed_while_the_state_is_given_costs_no_bit(
    victim, nth, alone, tmp_path: Path
) -> None:
    """w0 goes first, so that w1 is the donor of the one that joins, w3."""
    faults = FaultPlan().kill("w0", at_step=2).hold("w1", at_step=STEP, for_generation=3)
    giving = (
        shot("w1", JOINER, STATE, nth) if victim == "the donor" else shot("w3", 0, STATE, nth, sends=False)
    )
    done = play(tmp_path, faults, giving)
    check(done, alone)
    assert lost(done) == ["w0", giving.worker]
    assert ("w3", "w1") in {pair for plan in done.plans for pair in plan.heals}


def test_two_killed_at_once_cost_no_bit_and_so_do_all_but_one(alone, tmp_path: Path) -> None:
    faults = FaultPlan().kill("w0", at_step=STEP, phase="exchange").kill("w2", at_step=STEP, phase="exchange")
    done = play(tmp_path, faults)
    check(done, alone)
    assert sorted(lost(done)) == ["w0", "w2"]


def test_below_min_the_last_one_waits_with_its_state_and_goes_on_with_a_new_one(
    alone, tmp_path: Path
) -> None:
    faults = FaultPlan().kill("w0", at_step=STEP, phase="exchange").kill("w2", at_step=STEP, phase="exchange")
    done = play(tmp_path, faults, workers={"min": 2, "max": 3})
    check(done, alone)
    assert min(done.worlds) == 2
    assert all("w1" in plan.members for plan in done.plans)


def test_a_worker_killed_where_a_checkpoint_is_due_leaves_none_that_is_not_whole(
    alone, tmp_path: Path
) -> None:
    """It has committed the step, and its part of the state is not copied yet."""
    spec, uri = job(checkpoint={"every_steps": STEP + 1, "keep": 9}), (tmp_path / "checkpoints").as_uri()
    done = ThreadedCast(spec, Script("w1", "committing"), artifacts=tmp_path / "out", checkpoints=uri).play()
    check(done, alone)
    assert lost(done) == ["w1"]
    # The final state is saved once a generation, and the replacement may come in behind the last step.
    assert {made.manifest.position.step for made in done.checkpoints} == {STEPS}
    assert [name for name in Folder(uri).names() if Folder(uri).read(name)] == Folder(uri).names()


def test_a_pause_in_an_evaluation_saves_what_it_gave_though_its_step_is_saved_already(
    alone, tmp_path: Path
) -> None:
    spec, uri = job(checkpoint={"every_steps": STEP + 1, "keep": 1}), (tmp_path / "checkpoints").as_uri()
    faults = FaultPlan().pause(at_step=STEP + 1)
    faults = faults.hold("w0", at_step=STEP + 1, phase="evaluate", for_generation=2)
    first = ThreadedCast(spec, Script(), faults, artifacts=tmp_path / "out", checkpoints=uri).play()
    assert first.outcome == "paused", (first.reason, first.message)
    positions = [made.manifest.position for made in first.checkpoints]
    assert [(at.step, at.applied) for at in positions] == [(STEP + 1, STEP + 2)]
    second = ThreadedCast(spec, Script(), artifacts=tmp_path / "out", checkpoints=uri, attempt=2).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert second.digest == alone
    assert [made["step"] for made in second.reported("checkpoint.restored")] == [STEP + 1]
