"""Code behind a loop may use the names that its body gives, also where the body never had a turn."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import COPIES, RING, ROUNDS, SERVERS, job, made, rows
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F

from ringleader.train import Session
from ringleader.train.local import local_session, run_local

torch.set_num_threads(1)
ASYNC = {"intra_node": "parameter_server", "consistency": "async"}
MODES = {"servers": SERVERS, "copies": COPIES, "ring": RING, "local_sgd": ROUNDS}


class Names:
    """Uses what a loop's body left, before an evaluation and another loop, and counts turns by member."""

    def __init__(self) -> None:
        # Counted by no statement that leaves more than a turn's own names: such a body has a turn for each loop.
        self.turns: defaultdict[str, count[int]] = defaultdict(count)

    def __call__(self, session: Session) -> None:
        net, data = made(session), rows()
        me = threading.current_thread().name
        for epoch in range(3):
            for x, y in session.batches(data):
                next(self.turns[me])
                loss = F.cross_entropy(net(x), y)
                session.step(loss, spread=x.std())
            assert loss.item() > 0
            assert session.global_step == 6 * (epoch + 1)
            session.evaluate(data, lambda batch: {"hit": (net(batch[0]).argmax(dim=1) == batch[1]).float()})
        for x, _ in session.batches(data):
            last = x.sum()
            session.step(net(x).square().mean(), spread=x.std())
        assert last.item() >= 0


@pytest.mark.parametrize("sync", MODES.values(), ids=MODES)
def test_names_of_a_body_are_there_on_servers_and_joiners_and_cost_no_bit(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    alone, _ = run_local(job(sync), Names(), tmp_path / "alone")
    servers = sync.get("servers", 0)
    train = Names()
    # The third worker joins when two loops are over.
    faults = FaultPlan().resize(at_step=16, workers_min=1, workers_max=3)
    faults = faults.hold(f"w{servers}", at_step=16, for_generation=2, phase="exchange")
    spec = job(sync, workers={"min": 1, "max": 2})
    play = ThreadedCast(spec, train, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert (play.digest, play.worlds) == (alone.digest, [2, 3])
    assert [next(train.turns[f"s{server}"]) for server in range(servers)] == [1] * servers


def meddle(session: Session) -> None:
    """The body changes all that an optimizer holds, at the step at which a rehearsal of the loop stands; weights in the
    rehearsal only, as a turn that changes them is refused."""
    net, data = made(session), rows()
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    for _ in range(4):
        for x, y in session.batches(data):
            if session.global_step == 6:
                if session._loops.dry_turn.runs:
                    net[2].bias.data.fill_(0.5)
                optimizer.param_groups[0]["lr"] = 0.01
                for state in optimizer.state.values():
                    state["momentum_buffer"].zero_()
            if session.global_step == 8:
                optimizer.param_groups[0]["lr"] = 0.02
            session.step(F.cross_entropy(net(x), y))


@pytest.mark.parametrize("sync", [RING, ROUNDS], ids=["ring", "local_sgd"])
def test_what_a_body_changes_in_its_dry_turn_is_put_back(sync: dict[str, Any], tmp_path: Path) -> None:
    alone, _ = run_local(job(sync), meddle, tmp_path / "alone")
    faults = FaultPlan().resize(at_step=16, workers_min=1, workers_max=3)
    faults = faults.hold("w0", at_step=16, for_generation=2, phase="exchange")
    spec = job(sync, workers={"min": 1, "max": 2})
    play = ThreadedCast(spec, meddle, faults, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert (play.digest, play.worlds) == (alone.digest, [2, 3])


def test_names_of_a_body_are_there_on_a_server_that_leases_items(tmp_path: Path) -> None:
    train = Names()
    play = ThreadedCast(job(ASYNC), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert next(train.turns["s0"]) == 1


def test_where_the_body_had_turns_there_is_no_other() -> None:
    turns = 0
    with local_session(job(RING)) as session:
        net, data = made(session), rows()
        for _ in range(2):
            for x, y in session.batches(data):
                turns += 1
                session.step(F.cross_entropy(net(x), y))
    assert turns == 2 * 6 * 4


class Averages:
    """An average of the losses of an epoch, by a method that another one calls."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float) -> None:
        self.add(value)

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def mean(self) -> float:
        return self.total / self.count


class Outputs(nn.Module):
    """Keeps what it gave, as Lightning's modules do, until lines behind a loop take it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.outputs: list[Tensor] = []

    def training_step(self, batch: Any) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        assert torch.stack(self.outputs).mean() > 0
        self.outputs.clear()


class Bar:
    """Says at its end how long a turn took."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches, self.turns = batches, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.turns += 1
            yield batch
        assert 1 / self.turns <= 1


def averaged(batches: Iterable[Any]) -> Iterator[Any]:
    times = Averages()
    for batch in batches:
        yield batch
        times.update(1.0)
    assert times.mean == 1


def by_meter(session: Session, net: nn.Module) -> None:
    meters = {"loss": Averages()}
    for x, y in session.batches(rows()):
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        meters["loss"].update(value=loss.item())
    assert {name: meter.mean for name, meter in meters.items()}["loss"] > 0


def by_outputs(session: Session, net: nn.Module) -> None:
    model = Outputs(net)
    for batch in session.batches(rows()):
        session.step(model.training_step(batch))
    model.on_train_epoch_end()


def by_a_library(session: Session, net: nn.Module) -> None:
    """The text of the program shows no loop, as behind a trainer's `fit`."""
    model = Outputs(net)
    reduce(lambda _, batch: session.step(model.training_step(batch)), session.batches(rows()), None)
    model.on_train_epoch_end()


def by_inner_function(session: Session, net: nn.Module) -> None:
    losses: list[float] = []

    def train_step(x: Tensor, y: Tensor) -> None:
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        losses.append(loss.item())

    for x, y in session.batches(rows()):
        train_step(x, y)
    assert sum(losses) / len(losses) > 0


def by_a_function_held(session: Session, net: nn.Module) -> None:
    step, losses = step_of(session, net)
    for x, y in session.batches(rows()):
        step(x, y)
    assert sum(losses) / len(losses) > 0


def step_of(session: Session, net: nn.Module) -> tuple[Callable[..., None], list[float]]:
    losses: list[float] = []

    def train_step(x: Tensor, y: Tensor) -> None:
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        losses.append(loss.item())

    return train_step, losses


def by_list_given(session: Session, net: nn.Module) -> None:
    losses: list[float] = []
    fill(session, net, losses)
    assert sum(losses) / len(losses) > 0


def fill(session: Session, net: nn.Module, losses: list[float]) -> None:
    for x, y in session.batches(rows()):
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        losses.append(loss.item())


def by_hook(session: Session, net: nn.Module) -> None:
    seen: list[float] = []
    handle = net.register_forward_hook(lambda _module, _given, out: seen.append(out.mean().item()))
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))
    handle.remove()
    assert sum(seen) / len(seen) < 10


def by_sum(session: Session, net: nn.Module) -> None:
    count = torch.zeros(())
    for x, y in session.batches(rows()):
        session.step(F.cross_entropy(net(x), y))
        count = count + 1
    assert 1 / int(count) <= 1


def by_comprehension(session: Session, net: nn.Module) -> None:
    def step(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
        return loss.item()

    losses = [step(x, y) for x, y in session.batches(rows())]
    assert sum(losses) / len(losses) > 0


def by_bar(session: Session, net: nn.Module) -> None:
    for x, y in Bar(session.batches(rows())):
        session.step(F.cross_entropy(net(x), y))


def by_generator(session: Session, net: nn.Module) -> None:
    for x, y in averaged(session.batches(rows())):
        session.step(F.cross_entropy(net(x), y))


def by_name(session: Session, net: nn.Module) -> None:
    for x, y in session.batches(rows()):
        loss = F.cross_entropy(net(x), y)
        session.step(loss)
    assert loss.item() > 0
    del x, y, loss


COLLECTING: list[Callable[[Session, nn.Module], None]] = [
    *(by_meter, by_outputs, by_a_library, by_inner_function, by_a_function_held, by_list_given, by_hook),
    *(by_sum, by_comprehension, by_bar, by_generator, by_name),
]


@pytest.mark.parametrize("epoch", COLLECTING)
def test_lines_behind_each_loop_have_what_a_turn_of_it_collects_on_a_server(
    epoch: Callable[[Session, nn.Module], None], tmp_path: Path
) -> None:
    def train(session: Session) -> None:
        net = made(session)
        for _ in range(3):
            epoch(session, net)

    play = ThreadedCast(job(SERVERS), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)


@pytest.mark.parametrize("given_up", ["out = None", "del out", "del x, y"])
def test_names_given_up_behind_a_loop_are_there_behind_the_next_one_on_a_server(
    given_up: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"def train(session, net, rows, F):\n"
        f"    for _ in range(3):\n"
        f"        for x, y in session.batches(rows):\n"
        f"            out = net(x)\n"
        f"            session.step(F.cross_entropy(out, y))\n"
        f"        assert len(out) == len(x)\n"
        f"        {given_up}\n"
    )
    names: dict[str, Any] = {}
    exec(compile(program.read_text(), str(program), "exec"), names)

    def train(session: Session) -> None:
        names["train"](session, made(session), rows(), F)

    play = ThreadedCast(job(SERVERS), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)


@pytest.mark.parametrize("sync", [SERVERS, COPIES])
def test_a_callback_that_changes_published_weights_is_refused_by_name(
    sync: dict[str, Any], tmp_path: Path
) -> None:
    """A server has run it before it published: a worker would change them a second time."""

    def train(session: Session) -> None:
        net = made(session)

        @torch.no_grad()
        def shrink() -> None:
            net[2].weight.mul_(0.5)

        session.on_commit(shrink)
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))

    play = ThreadedCast(job(sync), train, artifacts=tmp_path).play()
    assert play.outcome == "failed"
    assert "on_commit callback changed 2.weight" in play.message
    assert ThreadedCast(job(RING), train, artifacts=tmp_path / "ring").play().outcome == "succeeded"
