"""Ways of keeping in step that differ between and inside nodes: real processes on two pretended nodes, killed in every
phase, the same bits. Members of a node share memory, the others talk over sockets."""

import multiprocessing as mp
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import Cast
from faults import FaultPlan
from test_group_faults import EPOCHS, check, job, register, rows, train
from torch import Tensor
from torch.nn import functional as F

from ringleader.errors import ExchangeBroken
from ringleader.exchange.registry import ARCHITECTURES, COPYING
from ringleader.train import Session
from ringleader.train.local import run_local

WITH_SERVERS = [name for name in ARCHITECTURES if "parameter_server" in name and "token_ring" not in name]
NODES = {"s0": 0, "s1": 1, "w2": 0, "w3": 0, "w4": 1, "w5": 1, "s5": 1, "s6": 1}
"""Three workers of four shards: what node 0 holds is two partial sums."""


def sync_of(name: str, servers: int = 2) -> dict[str, object]:
    inter, _, intra = name.partition("/")
    return {"inter_node": inter, "intra_node": intra or inter, "servers": servers}


BACKED = sync_of("parameter_server") | {"server_backups": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    finished, _ = run_local(job(), train, tmp_path_factory.mktemp("alone"))
    return finished.digest


@pytest.mark.parametrize("name", WITH_SERVERS)
def test_two_nodes_have_the_bits_of_one_process(undisturbed: str, tmp_path: Path, name: str) -> None:
    play = Cast(job(sync=sync_of(name)), train, artifacts=tmp_path, nodes=NODES).play()
    check(play, undisturbed)
    assert (play.worlds, play.plans[0].servers) == ([3], 2)


@pytest.mark.parametrize("phase", ["forward", "exchange", "committed"])
@pytest.mark.parametrize("victim", ["w2", "w4"])
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_a_killed_worker_of_two_nodes_costs_no_bit(
    undisturbed: str, tmp_path: Path, name: str, victim: str, phase: str
) -> None:
    """w2 collects for its node in every mode."""
    faults = FaultPlan().kill(victim, at_step=7, phase=phase)
    play = Cast(job(sync=sync_of(name)), train, faults, tmp_path, NODES).play()
    check(play, undisturbed)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


@pytest.mark.parametrize("phase", ["exchange", "committed"])
@pytest.mark.parametrize("victim", ["s0", "s1"])
@pytest.mark.parametrize(
    "sync", [*map(sync_of, sorted(COPYING)), BACKED], ids=lambda sync: sync["inter_node"]
)
def test_a_killed_server_with_a_copy_is_replaced_and_costs_no_bit(
    undisturbed: str, tmp_path: Path, sync: dict[str, object], victim: str, phase: str
) -> None:
    """The new one may be ready before the others have parked, and is then in the next plan."""
    faults = FaultPlan().kill(victim, at_step=7, phase=phase)
    faults = faults.hold("w2", at_step=11, for_generation=3, joined="s5")
    play = Cast(job(sync=sync), train, faults, tmp_path, NODES).play()
    check(play, undisturbed)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]
    assert {victim, "s5"} & set(play.plans[-1].members) == {"s5"}
    assert [plan.servers for plan in play.plans] in ([2, 1, 2], [2, 2])
    assert set(play.worlds) == {3}


def missing_an_evaluation(session: Session) -> None:
    """The servers' exchange breaks after the others have the scores of the first evaluation."""
    net = register(session)
    data = rows()
    armed = mp.current_process().name.startswith("s")

    def score(batch: Any) -> dict[str, Tensor]:
        nonlocal armed
        if armed and session.global_step == 5:
            armed = False
            exchange = session._member.generation.exchange
            assert exchange is not None
            exchange.all_reduce = partial(break_after, exchange.all_reduce)  # type: ignore[method-assign]
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    for _ in range(EPOCHS):
        for x, y in session.batches(data):
            session.step(F.cross_entropy(net(x), y), mean_x=x.mean())
        session.evaluate(data, score)


def break_after(act: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    act(values)
    raise ExchangeBroken(rank=-1, phase="all_reduce", bucket=None, why="this test says so")


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("name", WITH_SERVERS)
def test_servers_that_missed_the_end_of_an_evaluation_keep_their_optimizer_state(
    undisturbed: str, tmp_path: Path, name: str, servers: int
) -> None:
    """Only workers have its scores: they heal the servers' position, and know nothing of momenta."""
    spec = job(sync=sync_of(name, servers))
    play = Cast(spec, missing_an_evaluation, artifacts=tmp_path, nodes=NODES).play()
    check(play, undisturbed)
    first, second = play.plans
    assert second.start_transaction == first.start_transaction + 6
    donors = {donor for receiver, donor in second.heals if receiver.startswith("s")}
    assert len([r for r, _ in second.heals if r.startswith("s")]) == servers
    assert all(donor.startswith("w") for donor in donors)
