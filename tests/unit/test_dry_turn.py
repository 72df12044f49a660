"""Code behind a loop may use the names that its body gives, also where the body never had a turn."""

import threading
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FaultPlan
from test_leaving import COPIES, RING, ROUNDS, SERVERS, job, made, rows
from threaded_cast import ThreadedCast
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
