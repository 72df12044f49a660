"""Servers with backups where workers lease items: whoever is killed around a push, each push is applied once."""

import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from faults import ANY, FaultPlan
from leasing import (
    ASYNC,
    BACKUP,
    BATCH,
    LR,
    ROWS,
    SHARDS,
    SSP,
    STEPS,
    STEPS_AN_EPOCH,
    STRICT,
    Leaving,
    Nets,
    Numbers,
    Tally,
    check,
    expected,
    job,
    learn,
    name_of,
)
from play import Play
from test_leasing_rows import TabledNets
from threaded_cast import Shot, ThreadedCast

from ringleader.exchange.side_channel import PARTS, STATE, SUM, WORD
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.modes.async_server.messages import (
    ANSWER,
    ASK,
    OVER,
    PUSH,
    RECEIPT,
    TAKEN,
    MessageLayout,
    PullReply,
    RequestKind,
)
from ringleader.train.modes.async_server.server.endpoint import PushExtras, QueuedPush
from ringleader.train.modes.async_server.server.replicated_log import ReplicatedLog
from ringleader.train.modes.async_server.worker.client import ServerClient

BACKED = {"server_backups": 1}
THREE = BACKED | {"servers": 3}
TWO_MODES = [ASYNC | BACKED, SSP | THREE]
ALL = [*TWO_MODES, ASYNC | THREE, SSP | BACKED, STRICT | BACKED, STRICT | THREE, BACKUP | BACKED]


def lost(play: Play) -> list[str]:
    return [loss["worker"] for loss in play.reported("worker.lost")]


@pytest.mark.parametrize("mode", [ASYNC | THREE, SSP | BACKED, BACKUP | BACKED], ids=name_of)
def test_undisturbed_every_row_is_applied_once_on_a_server_and_on_its_backup(mode, tmp_path: Path) -> None:
    nets = Nets()
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path).play()
    check(play, nets, mode)
    assert len(play.plans) == 1


MOMENTS = {
    "before it gets a push": Shot("s0", -1, PUSH, 8, sends=False),
    "after it took the push, before it says so": Shot("s0", 1, TAKEN, 5),
    "when some have heard": Shot("s0", 1, TAKEN, 5, sends=False),
    "after the update, before the receipt": Shot("s0", -1, RECEIPT, 5),
    "as it hands out the next item": Shot("s0", -1, ANSWER, 5),
    "a backup before it gets a push": Shot("s1", -1, PUSH, 8, sends=False),
    "a backup before the receipt": Shot("s1", -1, RECEIPT, 5),
    "a backup before it hears": Shot("s1", 0, TAKEN, 5, sends=False),
    "a backup that has heard, before it says so": Shot("s1", 0, TAKEN, 5),
    "behind the last item, before it says where it stands": Shot("s0", 1, SUM, 3),
    "behind the last item, before it publishes": Shot("s0", 1, PARTS, 1),
}
"""Transfers with the one worker (-1), and between the first two servers."""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[PullReply]]:
    """What workers were answered, by name."""
    heard: dict[str, list[PullReply]] = {}
    ask = ServerClient.ask

    def note(self: ServerClient, wish: RequestKind, stop: int = -1) -> PullReply:
        answer = ask(self, wish, stop)
        heard.setdefault(threading.current_thread().name, []).append(answer)
        return answer

    monkeypatch.setattr(ServerClient, "ask", note)
    return heard


def check_monotone(said: dict[str, list[PullReply]]) -> None:
    """Nobody sees a version, or a step, after a newer one."""
    for answers in said.values():
        steps = [answer.step for answer in answers]
        assert steps == sorted(steps)
        versions: list[int] = []
        for answer in answers:
            assert not versions or answer.version >= versions[-1]
            versions = [] if answer.item == OVER else [*versions, answer.version]


@pytest.mark.parametrize("mode", TWO_MODES, ids=name_of)
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_server_killed_around_a_push_costs_no_item_and_repeats_none(
    mode, moment, said: dict[str, list[PullReply]], tmp_path: Path
) -> None:
    nets, spec = Nets(), job(mode, workers={"min": 1, "max": 1})
    play = ThreadedCast(spec, nets, artifacts=tmp_path, shots=(MOMENTS[moment],)).play()
    check(play, nets, mode)
    check_monotone(said)
    assert lost(play) == [MOMENTS[moment].worker]


@pytest.mark.parametrize(("mode", "entry"), [(ASYNC | BACKED, 7), (SSP | THREE, 9)], ids=["async", "ssp"])
def test_a_step_that_is_completed_between_generations_lets_the_one_before_it_out_once(
    mode, entry: int, tmp_path: Path
) -> None:
    """Step 2's last entry is heard of by a server that dies before it says so: server 0 makes the update, and settles
    step 1, as the next generation begins."""
    nets, spec = Nets(), job(mode, workers={"min": 1, "max": 1})
    play = ThreadedCast(spec, nets, artifacts=tmp_path, shots=(Shot("s1", 0, TAKEN, entry),)).play()
    check(play, nets, mode)
    assert lost(play) == ["s1"]


def test_of_two_pushes_of_an_item_the_one_on_newer_weights_is_held_whichever_comes_last() -> None:
    """A straggler's comes after that of whoever got its item when the update was made."""
    push = replace(MessageLayout(parameters=1, blocks=0, buffers=0).leaving(), item=3)
    old, new, other = (
        QueuedPush(0, replace(push, item=item, version=version), [], PushExtras(None, None))
        for item, version in ((3, 1), (3, 2), (4, 1))
    )
    for first, second in ((old, new), (new, old)):
        replicated_log = ReplicatedLog()
        assert [replicated_log.hold(arrival) for arrival in (first, other, second)] == [None, None, old]
        for item in (4, 3):
            replicated_log.confirm(item)
        assert replicated_log.due() == [(4, other), (3, new)]


def test_items_heard_of_before_a_break_are_applied_in_server_0_s_order_behind_it() -> None:
    """They came here in another order, and were not applied yet; of the last one nothing was heard."""
    push = replace(MessageLayout(parameters=1, blocks=0, buffers=0).leaving(), version=1)
    arrivals = {
        item: QueuedPush(0, replace(push, item=item), [], PushExtras(None, None)) for item in (3, 4, 5, 6)
    }
    log = ReplicatedLog()
    for arrival in arrivals.values():
        assert log.hold(arrival) is None
    for item in (5, 4):
        log.confirm(item)
    assert log.settle([3, 4, 5]) == [arrivals[6]]
    assert log.due() == [(item, arrivals[item]) for item in (5, 4, 3)]


@pytest.mark.parametrize("victim", ["s0", "s1"])
@pytest.mark.parametrize("nth", range(2))
def test_backup_workers_go_on_with_a_server_s_backup(nth: int, victim: str, tmp_path: Path) -> None:
    mode, nets = BACKUP | BACKED, Nets()
    shot = Shot(victim, 1 - int(victim[1:]), TAKEN, 4 + nth, sends=victim == "s0")
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path, shots=(shot,)).play()
    check(play, nets, mode)
    assert lost(play) == [victim]


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_killed_server_costs_ssp_without_staleness_no_bit(moment, tmp_path: Path) -> None:
    """Momentum, BatchNorm, a schedule; clipping, for each server holds everything."""

    def train(session: Session) -> None:
        learn(session, "momentum", clip_norm=0.05)

    alone, _ = run_local(job({}), train, tmp_path / "alone")
    spec = job(STRICT | BACKED)
    play = ThreadedCast(spec, train, artifacts=tmp_path / "cast", shots=(MOMENTS[moment],)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    assert {f.reproducible for f in play.finished.values()} == {True}


@pytest.mark.parametrize(
    ("mode", "tables"), [*((mode, False) for mode in ALL), *((mode, True) for mode in TWO_MODES)], ids=str
)
def test_its_replacement_takes_over_inside_the_loop_when_the_other_one_is_killed_too(
    mode, tables: bool, tmp_path: Path
) -> None:
    nets = TabledNets() if tables else Nets()
    servers, world = mode.get("servers", 2), 1 + mode.get("backup_workers", 0)
    new = f"s{servers + world}"
    faults = FaultPlan().kill("s0", at_step=1, phase="committed")
    for worker in range(servers, servers + world):  # of 16 items, which make four steps, the first some
        faults = faults.hold(f"w{worker}", at_step=ANY, past=8 - 2 * world, for_generation=3, joined=new)
    faults = faults.kill("s1", at_step=4, phase="committed")
    spec = job(mode, workers={"min": 1, "max": world})
    play = ThreadedCast(spec, nets, faults, tmp_path).play()
    check(play, nets, mode)
    assert lost(play) == ["s0", "s1"]
    assert new in play.finished


def test_a_new_server_that_has_no_state_yet_does_not_stand_in_for_the_last_one(tmp_path: Path) -> None:
    """Who should heal it dies as it begins to: the attempt ends, instead of going on with first weights."""
    faults = FaultPlan().kill("s0", at_step=1, phase="committed")
    faults = faults.hold("w2", at_step=ANY, past=6, for_generation=3, joined="s3")
    spec = job(ASYNC | BACKED, workers={"min": 1, "max": 1})
    shots = (Shot("s1", 1, STATE, 0),)
    play = ThreadedCast(spec, Nets(), faults, tmp_path, shots=shots).play()
    assert "s3" in play.plans[-1].members
    assert play.outcome == "failed", "a server without the state stood in for those that had it"


@pytest.mark.parametrize("seed", range(16))
def test_seeded_kills_of_servers_and_workers_lose_and_repeat_nothing(
    seed: int, said: dict[str, list[PullReply]], tmp_path: Path
) -> None:
    """One of each dies, at any transfer with any server or the first workers."""
    chance = random.Random(seed)
    mode, nets = chance.choice(ALL), Nets()
    count = mode.get("servers", 2)
    tags = (PUSH, RECEIPT, ASK, ANSWER, TAKEN, PARTS, STATE, WORD)
    shots = tuple(
        Shot(
            victim,
            chance.randrange(-2, count),
            chance.choice(tags),
            chance.randrange(16),
            chance.random() < 0.5,
        )
        for victim in (f"s{chance.randrange(count)}", f"w{count + chance.randrange(3)}")
    )
    print(f"seed {seed}: {mode}, {shots}")
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path, shots=shots).play()
    check(play, nets, mode)
    check_monotone(said)


ENDS: dict[str, tuple[FaultPlan, tuple[Shot, ...]]] = {
    "when it has heard of it": (FaultPlan(), (Shot("s0", -1, ASK, 6, sends=False),)),
    "before it says where it stands": (FaultPlan(), (Shot("s0", 1, SUM, 3),)),
    "as the next loop begins": (FaultPlan().kill("s0", at_step=ANY, phase="exchange", past=1), ()),
}


@pytest.mark.parametrize("mode", TWO_MODES, ids=name_of)
@pytest.mark.parametrize("way", ["stop", "break"])
@pytest.mark.parametrize("moment", ENDS, ids=str)
def test_a_loop_that_is_left_around_the_loss_of_a_server_has_what_the_ledger_says(
    moment: str, way: str, mode, tmp_path: Path
) -> None:
    """A stop that only the lost server heard is said again; a short last step is recorded once."""
    nets = Leaving(way, BATCH + BATCH // SHARDS)
    spec = job(mode, workers={"min": 1, "max": 1})
    faults, shots = ENDS[moment]
    play = ThreadedCast(spec, nets, faults, tmp_path, shots=shots).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert lost(play) == ["s0"]
    assert [step for step, _ in play.values] == list(range(1, len(play.values) + 1))
    weights = expected(play, mode)
    for name in play.finished:
        for vector in nets.made[name].vectors:
            assert torch.equal(vector.detach().double(), weights)
    rows = [row for step, _, row in play.settled_rows() if step > len(play.values) - STEPS_AN_EPOCH]
    assert sorted(rows) == list(range(ROWS))
    assert len(play.values) < STEPS


@pytest.mark.parametrize("mode", [ASYNC | BACKED, SSP | BACKED], ids=name_of)
def test_a_promoted_server_has_the_buffers_of_the_one_before(mode, tmp_path: Path) -> None:
    """What several slices did to them counts once each."""
    nets: dict[str, Tally] = {}

    def train(session: Session) -> None:
        net = nets[threading.current_thread().name] = session.model(Tally())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            session.step(net(rows).mean())

    faults = FaultPlan().kill("s0", at_step=3, phase="committed")
    play = ThreadedCast(job(mode), train, faults, tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert lost(play) == ["s0"]
    firsts = [row for start in range(0, ROWS - 2, BATCH) for row in range(start, start + BATCH // SHARDS)]
    seen = torch.zeros(ROWS, dtype=torch.float64)
    seen[firsts] = 1
    for name in play.finished:
        assert torch.equal(nets[name].seen, seen)
        assert int(nets[name].turns) == STEPS_AN_EPOCH - 1


def test_a_server_and_its_backup_killed_together_cost_an_attempt_which_goes_on_inside_the_loop(
    tmp_path: Path,
) -> None:
    """The second attempt loses one of them again before the first loop ends."""
    alone, _ = run_local(job({}), learn, tmp_path / "alone")
    spec, place = job(STRICT | BACKED, checkpoint={"every_steps": 2}), tmp_path / "checkpoints"
    faults = FaultPlan()
    for server in ("s0", "s1"):
        faults = faults.kill(server, at_step=3, phase="committed", once=place)
    first = ThreadedCast(spec, learn, faults, tmp_path / "1", checkpoints=str(place)).play()
    assert first.outcome == "failed"
    assert "the parameter server s" in first.message
    faults = FaultPlan().kill("s0", at_step=4, phase="committed")
    second = ThreadedCast(spec, learn, faults, tmp_path / "2", checkpoints=str(place), attempt=2).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [2]
    assert lost(second) == ["s0"]
    assert second.digest == alone.digest
