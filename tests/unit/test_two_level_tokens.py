"""Tokens between nodes and inside them: whatever happens, the weights of every member hold every row once."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import ANY, FaultPlan
from play import Play
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.utils.data import Dataset
from waiting import wait_for

from ringleader.spec import JobSpec
from ringleader.train import Session
from ringleader.train.modes.token_ring.flat_weights import ALIGNED
from ringleader.train.modes.token_ring.node_group import CALL, SUMS
from ringleader.train.modes.token_ring.token_exchange import WEIGHTS

torch.set_num_threads(1)
SHARDS, BATCH, ROWS, EPOCHS, LR = 4, 16, 66, 2, 0.5
"""The last batch of an epoch has two rows, in shards 1 and 3."""
STEPS = EPOCHS * 5

PUSHED = {"inter_node": "parameter_server", "intra_node": "token_ring"}
SERVED = {"inter_node": "token_ring", "intra_node": "parameter_server"}
SUMMED = {"inter_node": "token_ring", "intra_node": "ring"}
KINDS = {
    "pushed": PUSHED,
    "pushed-2-servers": PUSHED | {"servers": 2},
    "served": SERVED,
    "served-2-servers": SERVED | {"servers": 2},
    "summed": SUMMED,
    "nested": {"inter_node": "token_ring", "intra_node": "token_ring"},
}
NODES = {"one": "0000 00", "pairs": "0011 01", "apart": "0123 40", "uneven": "0111 00", "in-turn": "0101 10"}
"""The node of each of four workers, and of two servers."""


def job(sync: dict[str, Any], **changes: Any) -> JobSpec:
    base: dict[str, Any] = {
        "name": "levels",
        "entrypoint": "levels:train",
        "workers": {"min": 1, "max": 4},
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
        "sync": sync,
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


LEVELS = [kind for kind in KINDS if kind != "nested"]
"""Nested rings are one ring, whose losses have tests of their own."""
TOLD = {
    "pushed": "tokens round 2 workers of a node, pushed to 1 server",
    "pushed-2-servers": "tokens round 2 workers of a node, pushed to 2 servers",
    "served": "tokens round the servers, 4 workers at this one",
    "served-2-servers": "tokens round the servers, 2 workers at this one",
    "summed": "tokens round 4 workers, 2 of this node as one",
    "nested": "tokens round 4 workers",
}


def homes(nodes: str, servers: int) -> dict[str, int]:
    """By name: servers are started first."""
    workers, of_servers = nodes.split()
    names = [*(f"s{k}" for k in range(servers)), *(f"w{servers + k}" for k in range(len(workers)))]
    return dict(zip(names, map(int, of_servers[:servers] + workers), strict=True))


class Numbers(Dataset[Tensor]):
    """Rows that are their own numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Tensor:
        return torch.tensor(row)


class Nets:
    """A training function whose weights tell how often each row was applied, and the net of each member that ran it."""

    def __init__(self) -> None:
        self.made: dict[str, nn.Embedding] = {}

    def __call__(self, session: Session) -> None:
        net = self.made[threading.current_thread().name] = nn.Embedding(ROWS, 3)
        nn.init.zeros_(net.weight)
        session.model(net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for _ in range(EPOCHS):
            for rows in session.batches(Numbers(), shuffle=False):
                session.step(net(rows).sum(dim=1).mean(), first=rows.float().mean())
            self.between(session, net)
        session.evaluate(Numbers(), lambda rows: {"moved": net(rows).sum(dim=1).detach()})

    def between(self, session: Session, net: nn.Embedding) -> None:
        """Behind each loop."""


def check(play: Play, nets: Nets) -> None:
    """What holds whatever happened. A row moves each of its weights by LR/B in the whole batch; exact in float32."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    assert sorted(row for _, _, row in play.settled_rows()) == sorted(list(range(ROWS)) * EPOCHS)
    assert {(f.steps, f.samples) for f in play.finished.values()} == {(STEPS, EPOCHS * ROWS)}
    assert len({(f.loss, f.scores["moved"]) for f in play.finished.values()}) == 1
    moved_once(play, nets)


def moved_once(play: Play, nets: Nets) -> None:
    once = torch.full((ROWS, 3), LR / BATCH)
    once[ROWS - ROWS % BATCH :] = LR / (ROWS % BATCH)
    for name in play.finished:
        assert torch.equal(nets.made[name].weight.detach(), -EPOCHS * once), name


def played(kind: str, nodes: str, place: Path, faults: FaultPlan = FaultPlan(), **changes: Any) -> Play:  # noqa: B008
    nets, spec = Nets(), job(KINDS[kind], **changes)
    where = homes(NODES[nodes], spec.sync.server_count)
    play = ThreadedCast(spec, nets, faults, place, nodes=where).play()
    check(play, nets)
    return play


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_undisturbed_group_takes_every_row_once(kind: str, nodes: str, tmp_path: Path) -> None:
    play = played(kind, nodes, tmp_path)
    assert play.worlds == [4]
    if nodes == "pairs":
        (told,) = play.reported("exchange.chosen")
        assert [way["schedule"] for way in told["ways"]] == [TOLD[kind]]


@pytest.mark.parametrize(
    ("victim", "phase", "past"),
    [(0, "forward", 1), (1, "forward", 3), (0, "exchange", 0), (3, "exchange", 0), (2, "committed", 4)],
)
@pytest.mark.parametrize("kind", LEVELS)
def test_a_killed_worker_costs_no_row(kind: str, phase: str, past: int, victim: int, tmp_path: Path) -> None:
    name = f"w{job(KINDS[kind]).sync.server_count + victim}"
    faults = FaultPlan().kill(name, at_step=ANY, phase=phase, past=past)
    play = played(kind, "pairs", tmp_path, faults)
    assert len(play.plans) > 1
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [name]


@pytest.mark.parametrize("kind", LEVELS)
def test_a_lost_node_costs_no_row(kind: str, tmp_path: Path) -> None:
    """Both workers of the second node; what tokens list on the other node is not computed again."""
    first = job(KINDS[kind]).sync.server_count
    faults = FaultPlan()
    for victim in (2, 3):
        faults = faults.kill(f"w{first + victim}", at_step=ANY, phase="forward", past=2)
    play = played(kind, "pairs", tmp_path, faults)
    assert len(play.reported("worker.lost")) == 2


@pytest.mark.parametrize("victim", ["s0", "s1"])
@pytest.mark.parametrize("past", [0, 3, 7])
def test_a_server_that_passes_tokens_is_replaced(past: int, victim: str, tmp_path: Path) -> None:
    """What it owed to the tokens is computed again; a new one takes the other's state."""
    faults = FaultPlan().kill(victim, at_step=ANY, phase="exchange", past=past)
    play = played("served-2-servers", "pairs", tmp_path, faults)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == [victim]


@pytest.mark.parametrize("kind", ["pushed", "pushed-2-servers", "served"])
def test_the_loss_of_weights_that_nobody_else_has_ends_the_attempt(kind: str, tmp_path: Path) -> None:
    faults = FaultPlan().kill("s0", at_step=ANY, phase="committed", past=1)
    play = ThreadedCast(job(KINDS[kind]), Nets(), faults, tmp_path).play()
    assert play.outcome == "failed"


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("kind", LEVELS)
def test_few_items_on_their_way_are_enough_and_the_wait_for_them_is_logged(
    kind: str, staleness: int, tmp_path: Path
) -> None:
    """What rank 0 waits for is on its way: after its first item for tokens, or for its conductor."""
    sync = KINDS[kind] | {"staleness": staleness, "tokens": 2}
    nets, spec = Nets(), job(sync)
    where = homes(NODES["pairs"], spec.sync.server_count)
    play = ThreadedCast(spec, nets, artifacts=tmp_path, nodes=where).play()
    check(play, nets)
    exposed = [values["comm_exposed_fraction"] for _, values in play.values]
    assert all(0 <= share <= 1 for share in exposed)
    assert any(exposed)


def leave_early(session: Session) -> None:
    """One worker breaks in the middle of a batch; then one asks for a stop."""
    net = session.model(nn.Embedding(ROWS, 3))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
    one = threading.current_thread().name[0] == "w" and int(threading.current_thread().name[1:]) % 4 == 3
    for turn, rows in enumerate(session.batches(Numbers(), shuffle=False)):
        if one and turn == 1:
            break
        session.step(net(rows).sum(dim=1).mean(), first=rows.float().mean())
    for turn, rows in enumerate(session.batches(Numbers(), shuffle=False)):
        if one and turn == 2:
            session.stop()
        session.step(net(rows).sum(dim=1).mean(), first=rows.float().mean())
    session.evaluate(Numbers(), lambda rows: {"moved": net(rows).sum(dim=1).detach()})


@pytest.mark.parametrize("kind", LEVELS)
def test_break_and_stop_end_the_loop_for_all_with_equal_weights(kind: str, tmp_path: Path) -> None:
    """What was computed together with somebody who broke is not applied."""
    spec = job(KINDS[kind])
    where = homes(NODES["pairs"], spec.sync.server_count)
    play = ThreadedCast(spec, leave_early, artifacts=tmp_path, nodes=where).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest
    (end,) = {(f.steps, f.samples, f.loss, f.scores["moved"]) for f in play.finished.values()}
    assert len(play.settled_rows()) == end[1] < 2 * ROWS


@pytest.mark.parametrize("kind", LEVELS)
def test_a_resize_costs_no_row_and_nobody(kind: str, tmp_path: Path) -> None:
    first = f"w{job(KINDS[kind]).sync.server_count}"
    faults = FaultPlan().resize(at_step=2, workers_min=1, workers_max=2)
    faults = faults.hold(first, at_step=ANY, phase="committed", past=2, for_generation=2)
    play = played(kind, "pairs", tmp_path, faults)
    assert play.worlds == [4, 2]
    assert not play.reported("worker.lost")


class Twice(nn.Module):
    """Two weights that are added as views: autograd hands both the same memory as their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.zeros(ROWS, 3)) for _ in range(2))

    def forward(self, rows: Tensor) -> Tensor:
        return (self.one[None] + self.other[None])[0][rows]


@pytest.mark.parametrize("kind", LEVELS)
def test_each_of_two_weights_whose_gradients_lie_in_the_same_memory_moves_by_its_own(
    kind: str, tmp_path: Path
) -> None:
    """Two workers have two slices of each round, or of each batch."""
    nets: dict[str, Twice] = {}

    def train(session: Session) -> None:
        net = nets[threading.current_thread().name] = session.model(Twice())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            session.step(net(rows).sum(dim=1).mean())

    spec = job(KINDS[kind], workers={"min": 1, "max": 2})
    play = ThreadedCast(spec, train, artifacts=tmp_path, nodes=homes("00 00", spec.sync.server_count)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    once = torch.full((ROWS, 3), LR / BATCH)
    once[ROWS - ROWS % BATCH :] = LR / (ROWS % BATCH)
    for name in play.finished:
        assert all(torch.equal(weight.detach(), -once) for weight in nets[name].parameters()), name


class One(Dataset[Tensor]):
    """One row: the last shard's, and so the last worker's."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int) -> Tensor:
        return torch.tensor(row)


def one_item(session: Session) -> None:
    net = session.model(nn.Embedding(ROWS, 3))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
    for rows in session.batches(One()):
        session.step(net(rows).sum(dim=1).mean())


CROSSED = {
    ("pushed", "pairs"): 2,
    ("pushed", "uneven"): 2,
    ("pushed", "one"): 0,
    ("pushed", "apart"): 5,
    ("pushed-2-servers", "pairs"): 1.5,
    ("served", "pairs"): 0,
    ("served-2-servers", "pairs"): 2,
    ("served-2-servers", "in-turn"): 2,
    ("summed", "pairs"): 2,
    ("summed", "uneven"): 2,
    ("summed", "apart"): 4,
    ("nested", "pairs"): 2,
    ("nested", "in-turn"): 2,
    ("nested", "uneven"): 2,
}
"""How often the weights cross between nodes until everybody has one move of the last worker, in sizes of the weights.
Pushed: up from its node, and down to each node's leader, but where the span's server is at home. All others:
over each border between nodes that have a server, or workers."""


@pytest.mark.parametrize(("kind", "nodes"), CROSSED)
def test_what_crosses_between_nodes_does_not_depend_on_the_workers_inside(
    kind: str, nodes: str, tmp_path: Path
) -> None:
    spec = job(KINDS[kind])
    where = homes(NODES[nodes], spec.sync.server_count)
    cast = ThreadedCast(spec, one_item, artifacts=tmp_path, nodes=where)
    assert cast.play().outcome == "succeeded"
    (groups,) = {link.groups for link in cast.links} or {()}
    home = {rank: node for node, ranks in enumerate(groups) for rank in ranks}
    crossed, inside = (
        sum(
            count
            for link in cast.links
            for (peer, tag), count in link.sent.items()
            if tag in tags and home.get(peer) != home.get(link.rank)
        )
        for tags in ([WEIGHTS], range(CALL, SUMS + 2))
    )
    assert not inside or (kind, nodes) == ("served", "pairs"), "a crew shares a node where each has a server"
    size = -(-ROWS * 3 // ALIGNED) * ALIGNED * 4
    assert crossed == CROSSED[kind, nodes] * size


def restarted(spec: JobSpec, where: dict[str, int], place: Path, nets: Nets | None = None) -> int:
    """The step that the second attempt begins with; it ends with every row applied once by all attempts together."""
    nets = nets or Nets()
    play = ThreadedCast(
        spec, nets, artifacts=place, nodes=where, checkpoints=str(place / "saved"), attempt=2
    ).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    moved_once(play, nets)
    (restored,) = play.reported("checkpoint.restored")
    return int(restored["step"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_job_goes_on_with_every_row_once(kind: str, tmp_path: Path) -> None:
    """Paused inside the first loop, or behind it where members settle a whole loop at once."""
    spec = job(KINDS[kind], checkpoint={"every_steps": None})
    where, saved = homes(NODES["pairs"], spec.sync.server_count), str(tmp_path / "saved")
    faults = FaultPlan().pause(at_step=2)
    play = ThreadedCast(spec, Nets(), faults, tmp_path, nodes=where, checkpoints=saved).play()
    assert play.outcome == "paused", (play.reason, play.message)
    assert restarted(spec, where, tmp_path) >= 2


class Scored(Nets):
    """With an evaluation behind each loop. `paused`: the pause is asked for when the first loop is over for all."""

    def __init__(self, *, paused: bool) -> None:
        super().__init__()
        self._paused = paused

    def between(self, session: Session, net: nn.Embedding) -> None:
        if self._paused and session.epoch == 0 and session._member.current is not None:
            self._ask(session)
        session.evaluate(Numbers(), lambda rows: {"moved": net(rows).sum(dim=1).detach()})

    def _ask(self, session: Session) -> None:
        behind = STEPS // EPOCHS + 1
        session._sink.progress(step=behind, total_steps=None, epoch=0, phase="committed", rows=0)
        wait_for("the pause", session._member.coordinator.plan_pending)


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_paused_between_two_loops_goes_on_with_the_first_row_of_the_next(
    kind: str, tmp_path: Path
) -> None:
    spec = job(KINDS[kind], checkpoint={"every_steps": None})
    where, saved = homes(NODES["pairs"], spec.sync.server_count), str(tmp_path / "saved")
    faults = FaultPlan().pause(at_step=STEPS // EPOCHS + 1)
    play = ThreadedCast(spec, Scored(paused=True), faults, tmp_path, nodes=where, checkpoints=saved).play()
    assert play.outcome == "paused", (play.reason, play.message)
    assert restarted(spec, where, tmp_path, Scored(paused=False)) == STEPS // EPOCHS


@pytest.mark.parametrize("kind", KINDS)
def test_any_checkpoint_of_a_loop_is_a_place_to_go_on_from(kind: str, tmp_path: Path) -> None:
    spec = job(KINDS[kind], checkpoint={"every_steps": 2, "keep": 10})
    where, saved = homes(NODES["pairs"], spec.sync.server_count), tmp_path / "saved"
    nets = Nets()
    check(ThreadedCast(spec, nets, artifacts=tmp_path, nodes=where, checkpoints=str(saved)).play(), nets)
    oldest, *newer = sorted(saved.iterdir())
    for checkpoint in newer:
        shutil.rmtree(checkpoint)
    assert oldest.name.startswith(f"step-{restarted(spec, where, tmp_path):012d}-")
