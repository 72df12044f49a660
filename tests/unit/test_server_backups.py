"""Parameter servers with backups: a server killed at any moment costs no bit, no row and no step."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from play import Play
from threaded_cast import Shot, ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ringleader.comm.schedules.schedule import PARTIALS, RESULTS
from ringleader.exchange.side_channel import BUCKETS, PARTS, STATE, SUM, WORD
from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
ROWS, BATCH, EPOCHS, STEPS_AN_EPOCH = 72, 16, 2, 5
STEPS = EPOCHS * STEPS_AN_EPOCH
SYNC = {"inter_node": "parameter_server", "intra_node": "parameter_server"}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def job(servers: int, **changes: Any) -> JobSpec:
    """A single server is asked for by no number: its backup is the second."""
    base: dict[str, Any] = {
        "name": "backed",
        "entrypoint": "backed:train",
        "workers": {"min": 1, "max": 2},
        "batch": {"global_size": BATCH, "logical_shards": 4},
        "sync": SYNC | {"server_backups": 1} | ({"servers": servers} if servers > 1 else {}),
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


def drawn() -> tuple[nn.Module, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 6, generator=generator)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    return net, TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


NET, DATA = drawn()
"""The net is copied by every member: the generator that draws weights is shared by all threads."""


def learn(session: Session, kind: str) -> None:
    """BatchNorm, clipping, a schedule, a short last batch, evaluations."""
    net = session.model(copy.deepcopy(NET))
    optimizer = session.optimizer(OPTIMIZERS[kind](net.parameters()), clip_norm=0.05)
    session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7))

    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    for _ in range(EPOCHS):
        for x, y in session.batches(DATA):
            session.step(F.cross_entropy(net(x), y), mean_x=x.mean())
        session.evaluate(DATA, score)


TRAIN: dict[str, Callable[[Session], None]] = {
    "momentum": lambda session: learn(session, "momentum"),
    "adam": lambda session: learn(session, "adam"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of one process that computes every shard itself."""
    folder = tmp_path_factory.mktemp("alone")
    return {kind: run_local(job(2), train, folder / kind)[0].digest for kind, train in TRAIN.items()}


def check(play: Play, digest: str) -> None:
    """The promises that hold whatever happened."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == digest
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert [step for step, _, _ in play.rows] == list(range(1, STEPS + 1))
    settled = play.settled_rows()
    for epoch in range(EPOCHS):
        first, last = epoch * STEPS_AN_EPOCH, (epoch + 1) * STEPS_AN_EPOCH
        assert sorted(row for step, _, row in settled if first < step <= last) == list(range(ROWS))


def lost(play: Play) -> list[str]:
    return [loss["worker"] for loss in play.reported("worker.lost")]


W1 = {servers: BUCKETS + 2 * (servers - 1) for servers in (2, 3)}
"""The largest parameter is the first server's own, and in the last bucket."""

MOMENTS: dict[str, Callable[[int], Shot]] = {
    "while gradients come": lambda s: Shot("s0", -2, W1[s] + PARTIALS, 4, sends=False),
    "while servers sum": lambda s: Shot("s0", 1, W1[s] + RESULTS, 4),
    "before it answers": lambda s: Shot("s0", -1, WORD + RESULTS, 4),
    "before it says that it has applied": lambda s: Shot("s0", 1, PARTS, 7),
    "before it publishes": lambda s: Shot("s0", -2, W1[s] + RESULTS, 5),
    "while it answers in the last barrier": lambda s: Shot("s0", -1, WORD + RESULTS, STEPS + EPOCHS),
    "in an evaluation": lambda s: Shot("s0", -1, SUM, 2),
}
"""Transfers of the first server, with the two workers (-2, -1) and with the second server (1)."""


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_server_killed_inside_a_step_costs_no_bit(moment, servers, kind, alone, tmp_path: Path) -> None:
    play = ThreadedCast(
        job(servers), TRAIN[kind], artifacts=tmp_path, shots=(MOMENTS[moment](servers),)
    ).play()
    check(play, alone[kind])
    assert lost(play) == ["s0"]


@pytest.mark.parametrize("victim", ["s0", "s1"])
@pytest.mark.parametrize("phase", ["exchange", "committed"])
def test_a_server_killed_between_the_parts_of_a_step_costs_no_bit(
    phase, victim, alone, tmp_path: Path
) -> None:
    """Committed: applied, and nobody has it yet."""
    faults = FaultPlan().kill(victim, at_step=5, phase=phase)
    play = ThreadedCast(job(3), TRAIN["adam"], faults, tmp_path).play()
    check(play, alone["adam"])
    assert lost(play) == [victim]


@pytest.mark.parametrize("servers", [2, 3])
def test_a_server_killed_before_it_hears_the_end_of_the_last_barrier_costs_nothing(
    servers: int, alone, tmp_path: Path
) -> None:
    """Its replacement has nothing to do any more: those that it would be healed by may have left."""
    shot = Shot("s1", 0, WORD + RESULTS, STEPS + EPOCHS, sends=False)
    play = ThreadedCast(job(servers), TRAIN["adam"], artifacts=tmp_path, shots=(shot,)).play()
    check(play, alone["adam"])


def test_a_server_and_a_worker_killed_at_once_cost_no_bit(alone, tmp_path: Path) -> None:
    faults = FaultPlan().kill("s1", at_step=3, phase="exchange").kill("w2", at_step=3, phase="exchange")
    play = ThreadedCast(job(2), TRAIN["adam"], faults, tmp_path).play()
    check(play, alone["adam"])
    assert sorted(lost(play)) == ["s1", "w2"]


@pytest.mark.parametrize("servers", [2, 3])
def test_its_replacement_takes_over_when_the_other_one_is_killed_too(
    servers: int, alone, tmp_path: Path
) -> None:
    new = f"s{servers + 2}"
    faults = FaultPlan().kill("s0", at_step=3, phase="exchange")
    faults = faults.hold(f"w{servers}", at_step=4, for_generation=3, joined=new).kill("s1", at_step=7)
    play = ThreadedCast(job(servers), TRAIN["adam"], faults, tmp_path).play()
    check(play, alone["adam"])
    assert lost(play) == ["s0", "s1"]
    assert new in play.plans[-1].members
    assert all(play.plans[-1].held_by)


@pytest.mark.parametrize("nth", range(6))
def test_a_server_killed_while_a_new_one_is_healed_costs_no_bit(nth: int, alone, tmp_path: Path) -> None:
    """Three servers: the new one gets its position from one and the parts from both; the third dies giving."""
    faults = FaultPlan().kill("s0", at_step=3, phase="exchange")
    faults = faults.hold("w3", at_step=4, for_generation=3, joined="s5")
    shots = (Shot("s5", nth % 3 - 1, STATE, nth // 3, sends=False),)
    play = ThreadedCast(job(3), TRAIN["adam"], faults, tmp_path, shots=shots).play()
    check(play, alone["adam"])
    assert lost(play)[0] == "s0"


@pytest.mark.parametrize("seed", range(12))
def test_seeded_kills_of_servers_and_workers_cost_no_bit(seed: int, alone, tmp_path: Path) -> None:
    """One of each dies, at any transfer with anybody."""
    chance = random.Random(seed)
    servers, kind = chance.choice((1, 2, 3, 4)), chance.choice(list(OPTIMIZERS))
    count = max(2, servers)
    shots = tuple(
        Shot(
            victim,
            chance.randrange(-2, count),
            chance.choice((WORD, WORD + RESULTS, PARTS, BUCKETS, BUCKETS + RESULTS, STATE)),
            chance.randrange(12),
            chance.random() < 0.5,
        )
        for victim in (f"s{chance.randrange(count)}", f"w{count + chance.randrange(2)}")
    )
    print(f"seed {seed}: {servers} servers, {kind}, {shots}")
    play = ThreadedCast(job(servers), TRAIN[kind], artifacts=tmp_path, shots=shots).play()
    check(play, alone[kind])


def test_a_server_and_its_backup_killed_together_end_the_attempt_and_say_so(tmp_path: Path) -> None:
    faults = FaultPlan().kill("s0", at_step=3, phase="exchange").kill("s1", at_step=3, phase="exchange")
    play = ThreadedCast(job(2), TRAIN["adam"], faults, tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "platform_error")
    assert "parameter server s" in play.message


@pytest.mark.parametrize("servers", [2, 3])
def test_an_attempt_after_both_were_lost_goes_on_from_a_checkpoint(
    servers: int, alone, tmp_path: Path
) -> None:
    """Written while a server was missing and after it was replaced."""
    spec, folder = job(servers, checkpoint={"every_steps": 2}), (tmp_path / "checkpoints").as_uri()
    faults = FaultPlan().kill("s0", at_step=3, phase="exchange")
    for server in ("s1", f"s{servers + 2}"):
        faults = faults.kill(server, at_step=7, phase="exchange")
    faults = faults.hold(f"w{servers}", at_step=5, for_generation=3, joined=f"s{servers + 2}")
    first = ThreadedCast(spec, TRAIN["adam"], faults, tmp_path / "1", checkpoints=folder).play()
    assert (first.outcome, first.reason) == ("failed", "platform_error")
    second = ThreadedCast(spec, TRAIN["adam"], artifacts=tmp_path / "2", attempt=2, checkpoints=folder).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert second.digest == alone["adam"]
    assert second.reported("checkpoint.restored")[0]["step"] >= 2


def scored_first(session: Session) -> None:
    """An evaluation comes before any step."""
    net = session.model(copy.deepcopy(NET))
    session.optimizer(OPTIMIZERS["adam"](net.parameters()))

    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    session.evaluate(DATA, score)
    for x, y in session.batches(DATA):
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("backups", [0, 1])
def test_servers_that_have_not_updated_yet_are_not_taken_for_new_ones(backups: int, tmp_path: Path) -> None:
    """Two generations begin after the evaluation and before the first step."""
    alone, _ = run_local(job(2), scored_first, tmp_path / "alone")
    spec = job(2, sync=SYNC | {"servers": 2, "server_backups": backups}, workers={"min": 1, "max": 3})
    faults = FaultPlan().kill("w2", at_step=0).kill("w3", at_step=0, past=1)
    play = ThreadedCast(spec, scored_first, faults, tmp_path / "cast").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    assert {plan.start_transaction for plan in play.plans[1:3]} == {1}
