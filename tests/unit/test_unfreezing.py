"""What is frozen and unfrozen between loops: trained as by plain torch, exchanged only while it is trained."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import IN_STEP, RING, ROUNDS, SERVER, SERVERS, job, made, rows, worker
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from undisturbed import undisturbed

from ringleader.errors import StepMisuse
from ringleader.exchange.registry import share_out
from ringleader.train import Session
from ringleader.train.local import run_local

torch.set_num_threads(1)
LOOPS, PER_LOOP = 4, 6

Lines = Callable[[nn.Module, list[Optimizer], int], Optimizer | None]
"""What a program does before its loop of that number; an optimizer made there is the newest of the list."""


def thawed(net: Any, _: list[Optimizer], loop: int) -> None:
    if loop == 2:
        net[:2].requires_grad_(True)


def layer_by_layer(net: Any, _: list[Optimizer], loop: int) -> None:
    net[0].requires_grad_(loop >= 2)
    net[1].requires_grad_(loop in (1, 3))
    net[2].requires_grad_(loop != 3)


def by_a_group(net: Any, optimizers: list[Optimizer], loop: int) -> None:
    if loop == 2:
        net[:2].requires_grad_(True)
        optimizers[-1].add_param_group({"params": list(net[:2].parameters()), "lr": 0.01})


def by_another_optimizer(net: Any, _: list[Optimizer], loop: int) -> Optimizer | None:
    if loop != 2:
        return None
    net.requires_grad_(True)
    return Adam(net.parameters(), lr=0.01)


def everything(net: Any) -> Optimizer:
    return SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def head(net: Any) -> Optimizer:
    return SGD(net[2].parameters(), lr=0.1, momentum=0.9)


WAYS: dict[str, tuple[Callable[[Any], Optimizer], Lines]] = {
    "thawed": (everything, thawed),
    "layer by layer": (everything, layer_by_layer),
    "by a group": (head, by_a_group),
    "by another optimizer": (head, by_another_optimizer),
}


class Program:
    """A training function, and what it saw in its loops.

    Attributes:
        batches: by loop what its body was given.
        exchanged: by loop how many elements of gradients were exchanged.
        remembered: by loop how many parameters the optimizers keep something of, at its end.
    """

    def __init__(self, way: str) -> None:
        self.first, self.lines = WAYS[way]
        self.batches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(LOOPS)]
        self.exchanged: list[set[int]] = [set() for _ in range(LOOPS)]
        self.remembered: list[int] = []
        self.weights: dict[str, Tensor] = {}

    def __call__(self, session: Session) -> None:
        net = unregistered()
        session.model(net)
        net[:2].requires_grad_(False)
        optimizers = [session.optimizer(self.first(net))]
        for number in range(LOOPS):
            if (made_now := self.lines(net, optimizers, number)) is not None:
                optimizers.append(session.optimizer(made_now))
            for x, y in session.batches(rows()):
                self.batches[number].append((x.clone(), y.clone()))
                exchange = session._member.generation.exchange
                assert exchange is not None
                self.exchanged[number].add(sum(bucket.length for bucket in exchange.buckets.buckets))
                session.step(F.cross_entropy(net(x), y))
            with session._checks.states.shown():  # where servers keep it a program would be refused
                self.remembered.append(sum(len(o.state) for o, _ in session._held.optimizers))
        self.weights = {name: value.clone() for name, value in net.state_dict().items()}


@cache
def shared(way: str) -> Program:
    """The program whose undisturbed end all cases share."""
    return Program(way)


def unregistered() -> Any:
    net = nn.Sequential(
        nn.utils.skip_init(nn.Linear, 5, 8), nn.BatchNorm1d(8), nn.utils.skip_init(nn.Linear, 8, 3)
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape).remainder(5) / 5 - 0.3)
    return net


def plain_torch(way: str, batches: list[list[tuple[Tensor, Tensor]]]) -> dict[str, Tensor]:
    """The same program without a session."""
    first, lines = WAYS[way]
    net = unregistered()
    net[:2].requires_grad_(False)
    optimizers = [first(net)]
    for number, pairs in enumerate(batches):
        if (made_now := lines(net, optimizers, number)) is not None:
            optimizers = [made_now]
        for x, y in pairs:
            optimizers[-1].zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizers[-1].step()
    return dict(net.state_dict())


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_of_plain_torch_makes_the_same_bits(way: str, tmp_path: Path) -> None:
    program = Program(way)
    whole = job(RING, workers={"min": 1, "max": 1}, batch={"global_size": 12, "logical_shards": 1})
    run_local(whole, program, tmp_path)
    for name, value in plain_torch(way, program.batches).items():
        assert torch.equal(value, program.weights[name]), name


def test_only_what_is_trained_is_exchanged_and_remembered(tmp_path: Path) -> None:
    net = unregistered()
    body, norm, last = (sum(p.numel() for p in part.parameters()) for part in net)
    program = Program("layer by layer")
    run_local(job(RING), program, tmp_path)
    assert program.exchanged == [{last}, {norm + last}, {body + last}, {body + norm}]
    assert program.remembered == [2, 4, 6, 6]


def test_rounds_carry_only_what_is_trained(tmp_path: Path) -> None:
    program = Program("thawed")
    run_local(job(ROUNDS), program, tmp_path)
    before, _, after, _ = (sizes.pop() for sizes in program.exchanged)
    assert before < sum(p.numel() for p in unregistered().parameters()) < after
    assert program.remembered == [2, 2, 6, 6]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sync", IN_STEP.values(), ids=IN_STEP)
def test_members_end_with_the_bits_of_one_process(sync: dict[str, Any], way: str, tmp_path: Path) -> None:
    alone, _ = undisturbed(job(sync), shared(way))
    play = ThreadedCast(job(sync), Program(way), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest


AROUND = [(6, "committed"), (12, "between"), (12, "exchange"), (12, "forward"), (12, "committed")]
"""Near the begin of the third loop: `exchange` is the agreement."""


@pytest.mark.parametrize(("step", "phase"), AROUND)
@pytest.mark.parametrize("way", ["thawed", "by another optimizer"])
@pytest.mark.parametrize("sync", IN_STEP.values(), ids=IN_STEP)
def test_a_kill_near_the_unfreezing_costs_no_bit(
    sync: dict[str, Any], way: str, step: int, phase: str, tmp_path: Path
) -> None:
    alone, _ = undisturbed(job(sync), shared(way))
    faults = FaultPlan().kill(worker(sync, 1), at_step=step, phase=phase)
    play = ThreadedCast(job(sync), Program(way), faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    assert len(play.plans) > 1


@pytest.mark.parametrize("phase", ["exchange", "update"])
@pytest.mark.parametrize("sync", [SERVER, SERVERS], ids=["server", "servers"])
def test_a_server_lost_near_the_unfreezing_costs_no_bit(
    sync: dict[str, Any], phase: str, tmp_path: Path
) -> None:
    alone, _ = undisturbed(job(sync), shared("thawed"))
    faults = FaultPlan().kill("s0", at_step=12, phase=phase)
    spec = job(sync, checkpoint={"every_steps": 2})
    saved = str(tmp_path / "saved")
    play = ThreadedCast(spec, Program("thawed"), faults, artifacts=tmp_path, checkpoints=saved).play()
    if play.outcome != "succeeded":
        play = ThreadedCast(spec, Program("thawed"), artifacts=tmp_path, checkpoints=saved, attempt=2).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest


def by_turns(session: Session) -> None:
    """Its body freezes and unfreezes the first layer by turns, and leaves it frozen where a loop ends."""
    net: Any = made(session)
    for _ in range(LOOPS):
        for x, y in session.batches(rows()):
            net[0].requires_grad_(session.global_step % 2 == 0)
            session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("sync", [RING, SERVERS, ROUNDS], ids=["ring", "servers", "local_sgd"])
def test_what_a_body_freezes_by_turns_stays_exchanged(sync: dict[str, Any], tmp_path: Path) -> None:
    alone, _ = run_local(job(sync), by_turns, tmp_path / "alone")
    play = ThreadedCast(job(sync), by_turns, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest


def in_a_body(session: Session) -> None:
    net: Any = made(session)
    net[0].requires_grad_(False)
    for x, y in session.batches(rows()):
        net[0].requires_grad_(session.global_step >= 2)
        session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("sync", [RING, ROUNDS, {"intra_node": "token_ring"}])
def test_what_a_body_unfreezes_is_refused_by_name(sync: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"'0\.weight' was unfrozen inside a loop"):
        run_local(job(sync), in_a_body, tmp_path)


def test_a_loop_with_nothing_to_train_is_refused(tmp_path: Path) -> None:
    def frozen(session: Session) -> None:
        net = made(session)
        net.requires_grad_(False)
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match="no parameter of the models is trainable"):
        run_local(job(RING), frozen, tmp_path)


@pytest.mark.parametrize("way", ["thawed", "by a group"])
def test_leased_items_refuse_it_with_what_to_do(way: str, tmp_path: Path) -> None:
    play = ThreadedCast(job(SERVER | {"consistency": "ssp"}), Program(way), artifacts=tmp_path).play()
    assert play.outcome == "failed"
    assert "'0.weight' (one of 4) was frozen at the first session call" in play.message
    assert "add_param_group" in play.message


def test_token_rings_refuse_it_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match="are fixed with sync: token_ring, and cannot be trained now"):
        run_local(job({"intra_node": "token_ring"}), Program("thawed"), tmp_path)


def test_members_of_which_some_unfreeze_are_named(tmp_path: Path) -> None:
    def some(session: Session) -> None:
        net: Any = made(session)
        net[0].requires_grad_(False)
        for number in range(2):
            generation = session._member.current
            if number == 1 and generation is not None and generation.rank == 1:
                net[0].requires_grad_(True)
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))

    play = ThreadedCast(job(RING), some, artifacts=tmp_path).play()
    assert play.outcome == "failed"
    assert "the parameter '0.weight' was unfrozen on rank 1 (w1), but not on rank 0 (w0)" in play.message


def test_servers_share_what_is_trained_at_first_evenly() -> None:
    parameters = [nn.Parameter(torch.zeros(size)) for size in (100, 90, 80, 10, 10)]
    owners = share_out(parameters, 2, later=[0, 1, 2])
    assert sorted(owners[3:]) == [0, 1]
    assert sorted(owners[:3]) == [0, 1, 1]
