"""Workers that lease items from servers: whatever happens, every row is applied once on every server."""

import random
from pathlib import Path

import pytest
from faults import FaultPlan
from leasing import ASYNC, BACKUP, MODES, SSP, STRICT, Nets, check, job, name_of
from threaded_cast import Shot, ThreadedCast

from ringleader.train.modes.async_server.messages import ANSWER, ASK, PUSH, RECEIPT


@pytest.mark.parametrize("mode", MODES, ids=name_of)
def test_undisturbed_every_row_is_applied_once_on_every_server(mode, tmp_path: Path) -> None:
    nets = Nets()
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path).play()
    check(play, nets, mode)
    assert play.worlds == [3]
    assert set(play.values[0][1]) >= {"loss", "first", "staleness_mean", "staleness_max", "samples_per_s"}
    # Every worker waits for its first item, which cannot come at once.
    assert all(0 < values["comm_exposed_fraction"] <= 1 for _, values in play.values[:1])


"""Servers are named first: of one server's job w1 is a worker, of two servers' w2."""
MOMENTS = {
    "before its push": Shot("w1", 0, PUSH, 0),
    "inside its push": Shot("w1", 0, PUSH, 1),
    "after its push, before the receipt": Shot("w1", 0, RECEIPT, 1, sends=False),
    "before the next push": Shot("w1", 0, PUSH, 3),
    "as it asks": Shot("w1", 0, ASK, 1),
    "before the answer": Shot("w1", 0, ANSWER, 1, sends=False),
}
BETWEEN = {
    "before the first server": Shot("w2", 1, PUSH, 0),
    "between two servers": Shot("w2", 0, PUSH, 0),
    "before the first server's receipt": Shot("w2", 1, RECEIPT, 1, sends=False),
}


@pytest.mark.parametrize("mode", [ASYNC, SSP, STRICT, BACKUP], ids=name_of)
@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_a_worker_killed_around_its_push_costs_no_row_and_repeats_none(mode, moment, tmp_path: Path) -> None:
    nets = Nets(after="w1")
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path, shots=(MOMENTS[moment],), fired=nets.dead).play()
    check(play, nets, mode)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == ["w1"], play.reported("worker.lost")


@pytest.mark.parametrize("mode", [ASYNC, SSP, STRICT], ids=name_of)
@pytest.mark.parametrize("moment", BETWEEN, ids=str)
def test_a_worker_killed_between_two_servers_is_counted_once_on_each(mode, moment, tmp_path: Path) -> None:
    mode, nets = mode | {"servers": 2}, Nets(after="w2")
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path, shots=(BETWEEN[moment],), fired=nets.dead).play()
    check(play, nets, mode)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == ["w2"]


@pytest.mark.parametrize("seed", range(12))
def test_seeded_kills_lose_and_repeat_nothing(seed: int, tmp_path: Path) -> None:
    """Two workers die at any transfer with any server, in any mode."""
    chance = random.Random(seed)
    mode, nets = chance.choice(MODES), Nets()
    tags = ((PUSH, True), (RECEIPT, False), (ASK, True), (ANSWER, False))
    shots = []
    servers = mode.get("servers", 1)
    for worker in chance.sample(range(servers, servers + 4), 2):
        tag, sends = chance.choice(tags)
        shots.append(Shot(f"w{worker}", chance.randrange(servers), tag, chance.randrange(20), sends))
    print(f"seed {seed}: {mode}, {shots}")
    play = ThreadedCast(job(mode), nets, artifacts=tmp_path, shots=tuple(shots)).play()
    check(play, nets, mode)


@pytest.mark.parametrize("mode", MODES, ids=name_of)
def test_resizes_up_and_down_lose_and_repeat_nothing(mode, tmp_path: Path) -> None:
    nets = Nets()
    faults = (
        FaultPlan()
        .resize(at_step=1, workers_min=4, workers_max=4)
        .hold("s0", at_step=2, phase="committed", for_generation=2)
        .resize(at_step=4, workers_min=2, workers_max=2)
        .hold("s0", at_step=6, phase="committed", for_generation=3)
    )
    first = 1 + mode.get("backup_workers", 0)
    spec = job(mode, workers={"min": 1, "max": first})
    play = ThreadedCast(spec, nets, cues=faults, artifacts=tmp_path).play()
    check(play, nets, mode)
    assert play.worlds == [first, 4, 2]
    assert not play.reported("worker.lost")
