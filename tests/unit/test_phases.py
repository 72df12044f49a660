"""Several optimizers by turns in a step: the bits of a plain loop in torch, through kills, joins, pauses, restarts."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from canonical import combine
from faults import FaultPlan
from play import Play
from test_leaving import COPIES, LEASED, MERGED, RING, ROUNDS, SERVER, SERVERS, job, worker
from threaded_cast import Shot, ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from undisturbed import undisturbed

from ringleader.comm.schedules.schedule import RESULTS
from ringleader.comm.tree import tree_over
from ringleader.errors import StepMisuse
from ringleader.exchange.side_channel import BUCKETS, PARTS
from ringleader.train import Session
from ringleader.train.local import run_local
from ringleader.train.rows.order.batch_sizes import present_shards
from ringleader.train.rows.order.cursor import Epoch
from ringleader.train.state.norms import clip

torch.set_num_threads(1)
BACKED = SERVERS | {"server_backups": 1}
MODES = {"ring": RING, "server": SERVER, "servers": SERVERS, "copies": COPIES, "backed": BACKED}
ROWS, BATCH, SHARDS, EPOCHS, PER_EPOCH, STEPS = 40, 12, 4, 2, 4, 8
"""The last batch of an epoch has four rows."""
CRITIC_UPDATES = 2
CLIP = 0.5


def drawn() -> tuple[nn.Module, nn.Module, TensorDataset]:
    torch.manual_seed(3)
    generator = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return generator, critic, TensorDataset(torch.randn(ROWS, 2), torch.randn(ROWS, 4))


GENERATOR, CRITIC, DATA = drawn()
WIDE = (nn.Linear(2, 1 << 17, bias=False), nn.Linear(4, 1 << 16, bias=False))
"""Copied by every member: the generator that draws weights is shared by all threads, so noise is part of the rows."""


def critic_loss(critic: nn.Module, generator: nn.Module, noise: Tensor, real: Tensor) -> Tensor:
    fake = generator(noise)  # not detached: what its weights would get here is dropped
    return F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()


def generator_loss(critic: nn.Module, generator: nn.Module, noise: Tensor) -> Tensor:
    return F.softplus(-critic(generator(noise))).mean()


def optimizers(critic: nn.Module, generator: nn.Module) -> tuple[Any, Any]:
    return (
        torch.optim.Adam(critic.parameters(), lr=0.02),
        torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9),
    )


def gan(session: Session) -> None:
    """The critic is updated twice a step, with a clipped gradient; scores, an average and a schedule go with steps."""
    generator = session.model(copy.deepcopy(GENERATOR))
    critic = session.model(copy.deepcopy(CRITIC))
    critics, generators = optimizers(critic, generator)
    session.optimizer(critics, clip_norm=CLIP)
    session.optimizer(generators)
    session.scheduler(torch.optim.lr_scheduler.StepLR(generators, step_size=3, gamma=0.5))
    average = session.ema(generator, 0.7)
    for _ in range(EPOCHS):
        for *by_critic, by_generator in session.steps(DATA, phases=[critics] * CRITIC_UPDATES + [generators]):
            for turns in by_critic:
                for noise, real in turns:
                    loss = critic_loss(critic, generator, noise, real)
                    session.step(loss, real=critic(real).mean())
            for noise, _ in by_generator:
                session.step(generator_loss(critic, generator, noise))
            if session.global_step % 2 == 0:
                session.best(
                    generator,
                    session.evaluate(DATA, lambda b: {"fake": critic(generator(b[0]))[:, 0]})["fake"],
                )

    average.load_into(generator)


def plain(shards: int = SHARDS) -> list[Tensor]:
    """The same in plain torch, in one process: each gradient is the sum over the shards in canonical order."""
    generator, critic = copy.deepcopy(GENERATOR), copy.deepcopy(CRITIC)
    critics, generators = optimizers(critic, generator)
    schedule = torch.optim.lr_scheduler.StepLR(generators, step_size=3, gamma=0.5)
    average = [parameter.detach().clone() for parameter in generator.parameters()]
    phases: list[tuple[Any, nn.Module, Callable[[Tensor, Tensor], Tensor]]] = [
        (critics, critic, lambda noise, real: critic_loss(critic, generator, noise, real))
    ] * CRITIC_UPDATES + [(generators, generator, lambda noise, _: generator_loss(critic, generator, noise))]
    for number in range(EPOCHS):
        epoch = Epoch.shuffled(
            rows=ROWS, batch=BATCH, shards=shards, seed=job(RING).seed, epoch=number, shuffle=True
        )
        for offset in range(epoch.steps):
            rows = epoch.batch_rows(offset)
            present = sorted(present_shards(rows, shards))
            for optimizer, net, loss_of in phases:
                gradients: dict[int, list[Tensor]] = {}
                for shard in present:
                    optimizer.zero_grad()
                    mine = epoch.rows(offset, shard)
                    noise, real = (each[mine] for each in DATA.tensors)
                    (loss_of(noise, real) * (len(mine) / rows)).backward()
                    gradients[shard] = [p.grad.clone() for p in net.parameters()]
                tree = tree_over(shards, frozenset(present))
                for place, parameter in enumerate(net.parameters()):
                    parts = {shard: each[place] for shard, each in gradients.items()}
                    parameter.grad = combine(tree, parts, torch.add)
                if optimizer is critics:
                    clip(list(net.parameters()), CLIP)
                optimizer.step()
            schedule.step()
            for kept, parameter in zip(average, generator.parameters(), strict=True):
                kept.lerp_(parameter.detach(), 1 - 0.7)
    return [*average, *(p.detach() for p in critic.parameters())]


def check(play: Play, sync: dict[str, Any]) -> None:
    finished, sink = undisturbed(job(sync, batch=BATCHES), gan)
    assert play.outcome == "succeeded", (play.reason, play.message)
    if sync is not MERGED:
        assert play.digest == finished.digest
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert play.reported("member.differed") == []
    assert play.reported("program.differs") == []
    if sync is not MERGED:
        told = ("loss", "loss/0", "loss/1", "loss/2", "real", "fake", "lr/0", "lr/1")
        for step, values in play.values:
            assert {n: values.get(n) for n in told} == {n: sink.values[step].get(n) for n in told}


BATCHES = {"global_size": BATCH, "logical_shards": SHARDS}


def play(sync: dict[str, Any], place: Path, faults: FaultPlan | None = None, **changes: Any) -> ThreadedCast:
    spec = job(sync, **({"batch": BATCHES} | changes))
    return ThreadedCast(spec, gan, faults or FaultPlan(), artifacts=place)


def test_one_process_has_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    nets: list[nn.Module] = []

    def kept(session: Session) -> None:
        gan(session)
        nets.extend(session._held.models)

    finished, sink = run_local(job(RING, batch=BATCHES), kept, tmp_path)
    ours = [p.detach() for net in nets for p in net.parameters()]
    assert len(ours) == 8
    assert all(map(torch.equal, ours, plain()))
    assert finished.steps == STEPS
    first = sink.values[1]
    assert first["loss"] == first["loss/2"] != first["loss/0"] != first["loss/1"]
    assert {"real", "lr/0", "lr/1"} <= first.keys()


@pytest.mark.parametrize("sync", [*MODES.values(), MERGED], ids=[*MODES, "merged"])
def test_workers_of_any_mode_have_the_bits_of_one_process(sync: dict[str, Any], tmp_path: Path) -> None:
    check(play(sync, tmp_path).play(), sync)


def wide(session: Session) -> None:
    """Each optimizer has a weight of 1 MiB, in a bucket that goes in its own phase alone."""
    nets = [session.model(copy.deepcopy(net)) for net in WIDE]
    one, other = nets
    both = [torch.optim.SGD(net.parameters(), lr=0.01) for net in nets]
    for optimizer in both:
        session.optimizer(optimizer)
    for by_one, by_other in session.steps(DATA, phases=both):
        for noise, real in by_one:
            session.step(one(noise).square().mean() * other(real).square().mean())
        for noise, real in by_other:
            session.step(one(noise).square().mean() + other(real).square().mean())


@pytest.mark.parametrize("sync", [RING, SERVERS], ids=["ring", "servers"])
def test_buckets_that_go_in_one_phase_cost_no_bit_when_a_worker_is_killed_in_the_other(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    alone = run_local(job(RING, batch=BATCHES), wide, tmp_path / "alone")[0].digest
    faults = FaultPlan().kill(worker(sync, 1), at_step=1, phase="exchange", past=1)
    played = ThreadedCast(job(sync, batch=BATCHES), wide, faults, artifacts=tmp_path / "cast").play()
    assert played.outcome == "succeeded", played.message
    assert played.digest == alone


@pytest.mark.parametrize("past", range(CRITIC_UPDATES + 1))
@pytest.mark.parametrize("phase", ["forward", "exchange", "committed"])
@pytest.mark.parametrize("at", [0, 1, 4, 5])
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_a_kill_in_any_phase_costs_no_bit(
    sync: dict[str, Any], at: int, phase: str, past: int, tmp_path: Path
) -> None:
    faults = FaultPlan().kill(worker(sync, 1), at_step=at, phase=phase, past=past)
    check(play(sync, tmp_path, faults).play(), sync)


@pytest.mark.parametrize("at", range(STEPS))
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_who_joins_at_any_step_costs_no_bit(sync: dict[str, Any], at: int, tmp_path: Path) -> None:
    faults = FaultPlan().resize(at_step=at, workers_min=1, workers_max=3)
    faults = faults.linger(worker(sync, 0), since_step=at, for_generation=2)
    check(play(sync, tmp_path, faults, workers={"min": 1, "max": 2}).play(), sync)


@pytest.mark.parametrize("at", range(1, STEPS))
@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_a_pause_at_any_step_is_resumed_with_its_bits(sync: dict[str, Any], at: int, tmp_path: Path) -> None:
    faults = FaultPlan().pause(at_step=at)
    for number in range(3):
        faults = faults.linger(worker(sync, number), since_step=at, for_generation=2)
    resumed(sync, faults, "paused", tmp_path)


@pytest.mark.parametrize("past", range(CRITIC_UPDATES + 1))
@pytest.mark.parametrize("sync", [RING, SERVERS], ids=["ring", "servers"])
def test_a_job_that_loses_everybody_within_a_step_goes_on_from_a_whole_one(
    sync: dict[str, Any], past: int, tmp_path: Path
) -> None:
    faults = FaultPlan()
    for number in range(6):
        faults = faults.kill(worker(sync, number), at_step=5, past=past, once=tmp_path / "saved", later=True)
    resumed(sync, faults, "failed", tmp_path, budget=0)


def resumed(
    sync: dict[str, Any], faults: FaultPlan, outcome: str, place: Path, *, budget: int | None = None
) -> None:
    """The first attempt ends so, and the next one, at another world size, ends with the bits of one process."""
    saved = str(place / "saved")
    more = {"checkpoint": {"every_steps": 3}} | ({} if budget is None else {"max_failures": budget})
    one, other = (job(sync, batch=BATCHES, workers={"min": n, "max": n}, **more) for n in (3, 2))
    first = ThreadedCast(one, gan, faults, artifacts=place / "1", checkpoints=saved).play()
    if first.outcome == "succeeded":  # it came behind the last step
        return
    assert first.outcome == outcome, (first.reason, first.message)
    again = ThreadedCast(other, gan, artifacts=place / "2", checkpoints=saved, attempt=2).play()
    finished, _ = undisturbed(job(sync, batch=BATCHES), gan)
    assert again.outcome == "succeeded", (again.reason, again.message)
    assert again.reported("checkpoint.restored") != []
    assert again.digest == finished.digest


@pytest.mark.parametrize("nth", range(3, 12))
@pytest.mark.parametrize("place", ["applied", "published"])
def test_a_server_that_is_lost_around_an_update_costs_no_bit(place: str, nth: int, tmp_path: Path) -> None:
    """The other server may have made the update of that phase: it does not make it again."""
    moments = {"applied": Shot("s0", 1, PARTS, nth), "published": Shot("s0", -2, BUCKETS + RESULTS, nth)}
    cast = ThreadedCast(job(BACKED, batch=BATCHES), gan, artifacts=tmp_path, shots=(moments[place],))
    check(cast.play(), BACKED)
    assert cast.fired.is_set()


def refused(program: Callable[[Session], None], place: Path, **changes: Any) -> str:
    with pytest.raises(StepMisuse) as caught:
        run_local(job(RING, batch=BATCHES, **changes), program, place)
    return str(caught.value)


def nets(session: Session) -> tuple[nn.Module, nn.Module, Any, Any]:
    generator, critic = session.model(copy.deepcopy(GENERATOR)), session.model(copy.deepcopy(CRITIC))
    critics, generators = map(session.optimizer, optimizers(critic, generator))
    return generator, critic, critics, generators


def two_steps_in_a_turn(session: Session) -> None:
    generator, critic, _, _ = nets(session)
    for noise, real in session.batches(DATA):
        session.step(critic_loss(critic, generator, noise, real))
        session.step(generator_loss(critic, generator, noise))


def optimizer_given_to_step(session: Session) -> None:
    generator, critic, critics, _ = nets(session)
    for noise, real in session.batches(DATA):
        session.step(critic_loss(critic, generator, noise, real), optimizer=critics)


def phase_left_out(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for _, by_generator in session.steps(DATA, phases=[critics, generators]):
        for noise, _ in by_generator:
            session.step(generator_loss(critic, generator, noise))


def last_phase_left_out(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for by_critic, _ in session.steps(DATA, phases=[critics, generators]):
        for noise, real in by_critic:
            session.step(critic_loss(critic, generator, noise, real))


def left_between_phases(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for by_critic, _ in session.steps(DATA, phases=[critics, generators]):
        for noise, real in by_critic:
            session.step(critic_loss(critic, generator, noise, real))
        break
    session.evaluate(DATA, lambda batch: {"score": critic(batch[1])[:, 0]})


def phase_left_in_its_middle(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for by_critic, by_generator in session.steps(DATA, phases=[critics, generators]):
        for noise, real in by_critic:
            session.step(critic_loss(critic, generator, noise, real))
            break
        for noise, _ in by_generator:
            session.step(generator_loss(critic, generator, noise))


def phases_in_another_order(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for by_generator, by_critic in session.steps(DATA, phases=[critics, generators]):
        for noise, _ in by_generator:
            session.step(F.mse_loss(generator(noise), torch.zeros(len(noise), 4)))
        for noise, real in by_critic:
            session.step(critic_loss(critic, generator, noise, real))


def optimizer_in_no_phase(session: Session) -> None:
    _, _, critics, _ = nets(session)
    next(session.steps(DATA, phases=[critics, critics]))


def strange_optimizer(session: Session) -> None:
    _, critic, critics, _ = nets(session)
    next(session.steps(DATA, phases=[critics, torch.optim.SGD(critic.parameters(), lr=0.1)]))


def evaluated_between_phases(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for by_critic, by_generator in session.steps(DATA, phases=[critics, generators]):
        for noise, real in by_critic:
            session.step(critic_loss(critic, generator, noise, real))
        session.evaluate(DATA, lambda batch: {"score": critic(batch[1])[:, 0]})
        for noise, _ in by_generator:
            session.step(generator_loss(critic, generator, noise))


def rate_set_between_phases(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for by_critic, by_generator in session.steps(DATA, phases=[critics, generators]):
        for noise, real in by_critic:
            session.step(critic_loss(critic, generator, noise, real))
        generators.param_groups[0]["lr"] *= 0.5
        for noise, _ in by_generator:
            session.step(generator_loss(critic, generator, noise))


def frozen_phase(session: Session) -> None:
    generator, critic, critics, generators = nets(session)
    for by_critic, by_generator in session.steps(DATA, phases=[critics, generators]):
        for noise, real in by_critic:
            critic.requires_grad_(False)
            session.step(critic_loss(critic, generator, noise, real))
        for noise, _ in by_generator:
            session.step(generator_loss(critic, generator, noise))


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            two_steps_in_a_turn,
            "for critic, generator in session.steps(rows, phases=[critic_optimizer, generator_optimizer])",
        ),
        (optimizer_given_to_step, "for critic, generator in session.steps(rows, phases=[critic_optimizer"),
        (phase_left_out, "phase 1 of a step was begun before phase 0 was over"),
        (last_phase_left_out, "a step of session.steps was left before it was committed"),
        (left_between_phases, "the loop over session.batches was left in the middle of a batch"),
        (phase_left_in_its_middle, "phase 1 of a step was begun before phase 0 was over"),
        (phases_in_another_order, "the loss of phase 0 reaches no parameter of the phase's optimizer"),
        (optimizer_in_no_phase, "a registered optimizer (SGD, number 1) is in no phase of session.steps"),
        (strange_optimizer, "phase 1 of session.steps names no optimizer that is registered now"),
        (evaluated_between_phases, "between two slices of a step, or two of its phases"),
        (rate_set_between_phases, "between two steps of session.steps"),
        (frozen_phase, "no parameter of this phase's optimizer is trainable"),
    ],
)
def test_what_cannot_be_is_refused_with_the_line_to_write(
    program: Callable[[Session], None], told: str, tmp_path: Path
) -> None:
    assert told in refused(program, tmp_path)


@pytest.mark.parametrize(
    ("sync", "told"),
    [
        (ROUNDS, "this job has sync: local_sgd, where each logical shard steps copies of the optimizers"),
        (LEASED, "workers do not commit a step together: they lease items"),
        (
            {"intra_node": "token_ring"},
            "workers do not commit a step together: they lease items, or pass tokens",
        ),
        (RING | {"codec": "onebit"}, "this job has codec: onebit"),
    ],
    ids=["local_sgd", "leased", "token_ring", "codec"],
)
def test_modes_without_phases_refuse_by_name_before_the_first_step(
    sync: dict[str, Any], told: str, tmp_path: Path
) -> None:
    played = play(sync, tmp_path).play()
    assert (played.outcome, played.reason) == ("failed", "entrypoint_raised")
    assert told in played.message
    assert played.values == []
