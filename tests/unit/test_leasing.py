"""Workers that lease items from servers: whatever happens, every row is applied once on every server."""

import copy
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cast import FaultPlan, Play
from threaded_cast import Shot, ThreadedCast, ThreadPrompter
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from ringleader.elastic.leases import Lease, Leases
from ringleader.runtime.watch import WORKING
from ringleader.spec import JobSpec
from ringleader.sync.errands import ANSWER, ASK, PUSH, RECEIPT, Answer, Wish
from ringleader.sync.lessee import Lessee
from ringleader.train import Session
from ringleader.train.buffers import Buffers
from ringleader.train.local import run_local

torch.set_num_threads(1)
SHARDS, BATCH, ROWS, EPOCHS, LR = 4, 16, 66, 2, 0.5
STEPS_AN_EPOCH = 5
"""The last batch has two rows, in shards 1 and 3."""
STEPS = EPOCHS * STEPS_AN_EPOCH
ITEMS = (STEPS_AN_EPOCH - 1) * SHARDS + 2

ASYNC = {"consistency": "async"}
SSP = {"consistency": "ssp", "staleness": 2}
STRICT = {"consistency": "ssp"}
BACKUP = {"backup_workers": 1}
MODES = [ASYNC, ASYNC | {"servers": 2}, SSP, SSP | {"servers": 2}, STRICT | {"servers": 3}, BACKUP]


def name_of(mode: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in mode.items())


def job(mode: dict[str, Any], **changes: Any) -> JobSpec:
    sync = {"intra_node": "parameter_server", "inter_node": "parameter_server", **mode}
    base: dict[str, Any] = {
        "name": "leases",
        "entrypoint": "leases:train",
        "workers": {"min": 1, "max": 3},
        "batch": {"global_size": BATCH, "logical_shards": SHARDS},
        "sync": sync,
        "debug": {"ledger": True},
    }
    return JobSpec.parse(base | changes)


class Numbers(Dataset[Tensor]):
    """Rows that are their own numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Tensor:
        return torch.tensor(row)


class Counts(nn.Module):
    """The gradient of a row's mean is one at the row: weights tell how often each row was applied. One vector for
    each server."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.ParameterList(nn.Parameter(torch.zeros(ROWS)) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([vector[rows] for vector in self.vectors]).sum(dim=0)


def count(session: Session, net: nn.Module, before: Callable[[], None] = lambda: None) -> None:
    session.model(net)
    session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
    for _ in range(EPOCHS):
        for rows in session.batches(Numbers(), shuffle=False):
            before()
            session.step(net(rows).mean(), first=rows.float().mean())


class Nets:
    """A training function, and the net of each member that ran it.

    Args:
        after: of this worker nobody computes anything, until it is dead.
    """

    def __init__(self, after: str = "") -> None:
        self.made: dict[str, nn.Module] = {}
        self.dead = threading.Event()
        self._after = after

    def __call__(self, session: Session) -> None:
        me = threading.current_thread().name
        net = self.made[me] = self.make()
        count(session, net, self._wait if self._after not in ("", me) else lambda: None)

    def make(self) -> nn.Module:
        return Counts()

    def _wait(self) -> None:
        assert self.dead.wait(30), f"nobody killed {self._after}"


def expected(play: Play, mode: dict[str, Any]) -> Tensor:
    """(ROWS,) what every vector must be, by the ledger."""
    weights = torch.zeros(ROWS, dtype=torch.float64)
    for _, _, rows in play.rows:
        for row in rows:
            own = BATCH if row < ROWS - ROWS % BATCH else ROWS % BATCH
            weights[row] -= LR / (own if mode.get("consistency") == "async" else len(rows))
    return weights


def check(play: Play, nets: Nets, mode: dict[str, Any]) -> None:
    """What holds whatever happened."""
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, STEPS + 1))
    rows = [row for _, _, row in play.settled_rows()]
    assert sorted(rows) == sorted(list(range(ROWS)) * EPOCHS)
    assert {f.samples for f in play.finished.values()} == {EPOCHS * ROWS}
    (staleness,) = {tuple(f.staleness) for f in play.finished.values()}
    assert sum(staleness) == EPOCHS * ITEMS
    weights = expected(play, mode)
    exact = "backup_workers" not in mode  # its sums of 13 rows are divided by 13: no power of two
    for name in play.finished:
        for vector in nets.made[name].vectors:  # type: ignore[union-attr]
            same = torch.equal(vector.detach().double(), weights)
            assert same if exact else torch.allclose(vector.detach().double(), weights, atol=1e-6)


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
    assert [lost["worker"] for lost in play.reported("worker.lost")] == ["w1"]


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
        .resize(at_step=1, minimum=4, maximum=4)
        .hold("s0", at_step=2, phase="committed", for_generation=2)
        .resize(at_step=4, minimum=2, maximum=2)
        .hold("s0", at_step=6, phase="committed", for_generation=3)
    )
    first = 1 + mode.get("backup_workers", 0)
    spec = job(mode, workers={"min": 1, "max": first})
    play = ThreadedCast(spec, nets, cues=faults, artifacts=tmp_path).play()
    check(play, nets, mode)
    assert play.worlds == [first, 4, 2]
    assert not play.reported("worker.lost")


class Drawn(nn.Module):
    """Without dropout: members are threads that share the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.register_parameter("unused", nn.Parameter(torch.ones(3)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def drawn_rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(72, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


DATA = drawn_rows()
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
NET = Drawn()
"""Copied by every member: the generator that draws weights is shared by all threads."""


def learn(session: Session, kind: str = "momentum", clip_norm: float | None = None) -> None:
    """BatchNorm, a schedule, weights, a parameter that nothing reaches, evaluations, a short last batch."""
    net = session.model(copy.deepcopy(NET))
    optimizer = session.optimizer(OPTIMIZERS[kind](net.parameters()), clip_norm=clip_norm)
    session.scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7))

    def score(batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (net(batch[0]).argmax(dim=1) == batch[1]).float()}

    for _ in range(3):
        for x, y in session.batches(DATA):
            session.step(F.cross_entropy(net(x), y), weight=float(y.sum() + 1), mean_x=x.mean())
        session.evaluate(DATA, score)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ssp_without_staleness_has_the_bits_of_synchronous_servers(kind, clip_norm, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        learn(session, kind, clip_norm)

    in_step, values = run_local(job({}), train, tmp_path / "alone")
    play = ThreadedCast(job(STRICT), train, artifacts=tmp_path / "cast").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == in_step.digest
    for step, said in play.values:
        assert said["loss"] == pytest.approx(values.values[step]["loss"], abs=1e-6)  # summed in another order
        assert said.get("accuracy") == values.values[step].get("accuracy")
    assert {f.reproducible for f in play.finished.values()} == {True}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_costs_ssp_without_staleness_no_bit(servers: int, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    tag, sends = chance.choice(((PUSH, True), (RECEIPT, False), (ASK, True), (ANSWER, False)))
    shot = Shot(f"w{servers}", chance.randrange(servers), tag, chance.randrange(12), sends)
    print(f"seed {seed}: {shot}")
    alone, _ = run_local(job({}), learn, tmp_path / "alone")
    spec = job(STRICT | {"servers": servers})
    play = ThreadedCast(spec, learn, artifacts=tmp_path / "cast", shots=(shot,)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest


@pytest.mark.parametrize("nth", [6, 8, 10])
def test_a_clock_that_one_server_has_whole_waits_for_server_0(nth: int, tmp_path: Path) -> None:
    """One worker dies in its third, fourth or fifth push: the other server may have all four gradients of a clock."""
    alone, _ = run_local(job({}), learn, tmp_path / "alone")
    spec = job(STRICT | {"servers": 2}, workers={"min": 1, "max": 1})
    play = ThreadedCast(spec, learn, artifacts=tmp_path / "cast", shots=(Shot("w2", 0, PUSH, nth),)).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [lost["worker"] for lost in play.reported("worker.lost")] == ["w2"]
    assert play.digest == alone.digest


@pytest.mark.parametrize("servers", [1, 2])
def test_a_lost_server_costs_an_attempt_which_goes_on_inside_the_loop(servers: int, tmp_path: Path) -> None:
    """A loop has five steps; the newest checkpoint is the fourth's."""
    alone, _ = run_local(job({}), learn, tmp_path / "alone")
    spec = job(STRICT | {"servers": servers}, checkpoint={"every_steps": 4})
    place = str(tmp_path / "checkpoints")
    faults = FaultPlan().kill("s0", at_step=7, phase="committed", once=tmp_path / "checkpoints")
    first = ThreadedCast(spec, learn, faults, tmp_path / "cast", checkpoints=place).play()
    assert first.outcome == "failed"
    second = ThreadedCast(spec, learn, artifacts=tmp_path / "cast", checkpoints=place, attempt=2).play()
    assert second.outcome == "succeeded", (second.reason, second.message)
    assert [data["step"] for data in second.reported("checkpoint.restored")] == [4]
    assert second.digest == alone.digest


def test_clipping_by_several_ssp_servers_is_refused_by_name(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        learn(session, clip_norm=0.05)

    play = ThreadedCast(job(SSP | {"servers": 2}), train, artifacts=tmp_path).play()
    assert play.outcome == "failed"
    assert "clip_norm" in play.message


@pytest.mark.parametrize("servers", [1, 2])
def test_an_asynchronous_item_is_clipped_by_its_whole_norm(servers: int, tmp_path: Path) -> None:
    """One worker, so that one server's order is two servers' order; every gradient is far above the bound."""

    def train(session: Session) -> None:
        learn(session, clip_norm=0.05)

    def free(session: Session) -> None:
        learn(session)

    spec = job(ASYNC | {"servers": servers}, workers={"min": 1, "max": 1})
    clipped = ThreadedCast(spec, train, artifacts=tmp_path / "clipped").play()
    loose = ThreadedCast(spec, free, artifacts=tmp_path / "free").play()
    assert clipped.outcome == loose.outcome == "succeeded", clipped.message
    assert clipped.digest != loose.digest


UNEVEN = 18
"""Rows of a batch whose slices have 4, 5, 4, 5."""


def by_hand(weight: Callable[[Tensor], float] = len) -> nn.Module:
    """Items in their order, each an update at its share of the learning rate: of its rows and, where a weight is not
    the rows, of what a row weighs beside the mean row so far. Plain torch."""
    net = copy.deepcopy(NET)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5)
    x, y = DATA.tensors
    weights = seen = 0.0
    for start in range(0, len(x), UNEVEN):
        rows = min(UNEVEN, len(x) - start)
        for shard in range(SHARDS):
            low, high = start + shard * rows // SHARDS, start + (shard + 1) * rows // SHARDS
            if low == high:
                continue
            optimizer.zero_grad()
            F.cross_entropy(net(x[low:high]), y[low:high]).backward()
            weights, seen = weights + weight(y[low:high]), seen + high - low
            optimizer.param_groups[0]["lr"] = 0.125 * (weight(y[low:high]) / (weights / seen)) / rows
            optimizer.step()
    return net


def label_weight(y: Tensor) -> float:
    """Of a slice; one of rows that are all of class 0 counts little."""
    return float(y.sum()) + 0.5


@pytest.mark.parametrize("weight", [len, label_weight])
def test_alone_every_item_is_an_update_of_its_own(weight, tmp_path: Path) -> None:
    """Slices of 18 rows have 4, 5, 4, 5. An item's weight counts beside the mean so far: no later one is known."""
    nets: list[nn.Module] = []

    def train(session: Session) -> None:
        nets.append(session.model(copy.deepcopy(NET)))
        session.optimizer(torch.optim.SGD(nets[0].parameters(), lr=0.125, momentum=0.5))
        for x, y in session.batches(DATA, shuffle=False):
            session.step(F.cross_entropy(nets[0](x), y), weight=None if weight is len else weight(y))

    finished, outlet = run_local(
        job(ASYNC, batch={"global_size": UNEVEN, "logical_shards": SHARDS}), train, tmp_path
    )
    assert finished.steps == 4
    assert sorted(outlet.values) == [1, 2, 3, 4]
    assert sorted(row for _, rows in outlet.rows.values() for row in rows.tolist()) == list(range(72))
    for ours, theirs in zip(nets[0].parameters(), by_hand(weight).parameters(), strict=True):
        # A share is rounded to a float64 on the way to its learning rate.
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("mode", "steps"), [(ASYNC, STEPS_AN_EPOCH - 1), (BACKUP, STEPS_AN_EPOCH)])
def test_a_straggler_holds_nobody_up(mode, steps: int, tmp_path: Path) -> None:
    """The first worker stays in its first turn until the others have made every step that they can: with a backup all,
    because what they were quicker than is theirs; with `async` all that its item is no part of."""
    begun, ahead, order = threading.Event(), threading.Event(), []

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        me = threading.current_thread().name

        def note() -> None:
            if me == "s0":
                order.append(("step", session.global_step))
                if session.global_step == steps:
                    ahead.set()

        session.on_commit(note)
        for turn, rows in enumerate(session.batches(Numbers(), shuffle=False)):
            if me == "w1" and turn == 0:
                begun.set()
                assert ahead.wait(30), f"the others waited for a straggler: {order}"
                order.append(("late", 0))
            assert begun.wait(30), "the straggler got no item"
            session.step(net(rows).mean())

    play = ThreadedCast(job(mode), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert order[: steps + 1] == [*(("step", step) for step in range(1, steps + 1)), ("late", 0)]
    assert [step for step, _ in play.values] == list(range(1, STEPS_AN_EPOCH + 1))
    assert sorted(row for _, _, row in play.settled_rows()) == list(range(ROWS))
    (staleness,) = {tuple(f.staleness) for f in play.finished.values()}
    assert sum(staleness) == ITEMS
    assert mode is ASYNC or staleness[0] == ITEMS, "an update is made of gradients of its own version"


@pytest.mark.parametrize("staleness", [1, 2])
def test_ssp_goes_on_up_to_its_bound_and_no_further(staleness: int, tmp_path: Path) -> None:
    """The straggler holds an item of clock 0 until the others have computed all that they may."""
    seen: list[int] = []
    enough = threading.Event()
    allowed = (staleness + 1) * SHARDS - 1

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        me = threading.current_thread().name
        for rows in session.batches(Numbers(), shuffle=False):
            if me == "w1":
                assert enough.wait(30), f"the others made {len(seen)} of {allowed} items"
            else:
                seen.append(int(rows.min()) // BATCH)
                if len(seen) == allowed:
                    enough.set()
            session.step(net(rows).mean())

    play = ThreadedCast(job({"consistency": "ssp", "staleness": staleness}), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert max(seen[:allowed]) == staleness
    assert max(values["staleness_max"] for _, values in play.values) == staleness


@pytest.mark.parametrize("mode", [ASYNC, ASYNC | {"servers": 2}, SSP, STRICT, BACKUP], ids=name_of)
@pytest.mark.parametrize("way", ["stop", "break"])
def test_one_worker_ends_the_loop_for_all(mode, way: str, tmp_path: Path) -> None:
    """The rows of the steps that were made are those in the weights; the next loop takes every row."""
    nets: dict[str, Counts] = {}

    def train(session: Session) -> None:
        me = threading.current_thread().name
        net = nets[me] = Counts()
        session.model(net)
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if int(rows.max()) >= 2 * BATCH:
                if way == "break":
                    break
                session.stop()
            session.step(net(rows).mean())
        for rows in session.batches(Numbers(), shuffle=False):
            session.step(net(rows).mean())

    play = ThreadedCast(job(mode), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    weights = expected(play, mode)
    for name in play.finished:
        for vector in nets[name].vectors:
            assert torch.allclose(
                vector.detach().double(), weights, atol=1e-6
            )  # sums over 13 rows are rounded
    rows = [row for step, _, row in play.settled_rows() if step > len(play.values) - STEPS_AN_EPOCH]
    assert sorted(rows) == list(range(ROWS))
    assert len(play.values) < STEPS


def test_a_worker_that_left_a_loop_waits_in_a_phase_that_has_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a loop that one worker leaves, and of pushes on their way: what the training thread said last."""
    said: dict[str, str] = {}
    waits: list[tuple[str, str]] = []
    progress, ask, pushed = ThreadPrompter.progress, Lessee.ask, Lessee.pushed

    def note(self: ThreadPrompter, **news: Any) -> None:
        said[threading.current_thread().name] = news["phase"]
        progress(self, **news)

    def asks(self: Lessee, wish: Wish, stop: int = -1) -> Answer:
        waits.append((wish.name, said[threading.current_thread().name]))
        return ask(self, wish, stop)

    def waits_for_push(self: Lessee) -> None:
        if self._pushing is not None:
            waits.append(("push", said[threading.current_thread().name]))
        pushed(self)

    monkeypatch.setattr(ThreadPrompter, "progress", note)
    monkeypatch.setattr(Lessee, "ask", asks)
    monkeypatch.setattr(Lessee, "pushed", waits_for_push)

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if int(rows.max()) >= BATCH and threading.current_thread().name == "w1":
                break
            session.step(net(rows).mean())

    play = ThreadedCast(job(ASYNC), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert "BREAK" in {wish for wish, _ in waits}
    assert not {phase for _, phase in waits} & WORKING


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("way", ["stop", "break"])
def test_what_one_server_got_before_a_kill_ended_the_loop_is_applied_nowhere(
    way, servers, tmp_path: Path
) -> None:
    """The one worker dies between two servers; the other, with an item in hand, then ends the loop."""
    nets: dict[str, Counts] = {}
    dead = threading.Event()
    victim = f"w{servers}"

    def train(session: Session) -> None:
        me = threading.current_thread().name
        net = nets[me] = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if me != victim:
                assert dead.wait(30), f"nobody killed {victim}"
                if way == "break":
                    break
                session.stop()
            session.step(net(rows).mean())
        for rows in session.batches(Numbers(), shuffle=False):
            session.step(net(rows).mean())

    spec = job(ASYNC | {"servers": servers}, workers={"min": 1, "max": 2})
    shots = (Shot(victim, 0, PUSH, 0),)
    play = ThreadedCast(spec, train, artifacts=tmp_path, shots=shots, fired=dead).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    weights = expected(play, ASYNC)
    for name in play.finished:
        for vector in nets[name].vectors:
            assert torch.equal(vector.detach().double(), weights)


class Tally(Counts):
    """Buffers that count what the forwards saw: rows, and turns; and a truth value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(ROWS, dtype=torch.float64))
        self.register_buffer("turns", torch.tensor(0))
        self.register_buffer("late", torch.tensor(False))

    def forward(self, rows: Tensor) -> Tensor:
        self.seen[rows] += 1
        self.turns += 1
        self.late.fill_(bool(rows.max() >= BATCH))
        return super().forward(rows)


@pytest.mark.parametrize("mode", [SSP, SSP | {"servers": 2}, ASYNC, BACKUP], ids=name_of)
def test_no_slice_loses_what_another_did_to_the_buffers(mode, tmp_path: Path) -> None:
    """With ssp the straggler holds an item of the first clock until the first slices of the next two, which start from
    the same buffers, are computed."""
    nets: dict[str, Tally] = {}
    enough = threading.Event()
    seen: list[int] = []

    def train(session: Session) -> None:
        me = threading.current_thread().name
        net = nets[me] = session.model(Tally())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers(), shuffle=False):
            if me == "w2" and mode.get("staleness"):
                assert enough.wait(30), f"the others made {len(seen)} items"
            seen.append(int(rows.min()))
            if len(seen) == 3 * SHARDS - 1:
                enough.set()
            session.step(net(rows).mean())

    play = ThreadedCast(job(mode), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    if mode.get("staleness"):
        assert max(values["staleness_max"] for _, values in play.values) == 2
    firsts = [row for start in range(0, ROWS - 2, BATCH) for row in range(start, start + BATCH // SHARDS)]
    expected = torch.zeros(ROWS, dtype=torch.float64)
    expected[firsts] = 1
    for name in play.finished:
        assert torch.equal(nets[name].seen, expected)
        assert (int(nets[name].turns), bool(nets[name].late)) == (STEPS_AN_EPOCH - 1, True)


def test_buffers_that_cannot_be_negative_do_not_become_so() -> None:
    """Two slices from one start take away more than there is left of a variance; a mean may go below zero."""
    norm = nn.BatchNorm1d(1)
    buffers = Buffers([norm])
    start = buffers.committed_bytes()
    lefts = []
    for _ in range(2):
        norm.running_var.fill_(0.25)  # type: ignore[union-attr]
        norm.running_mean.fill_(-0.5)  # type: ignore[union-attr]
        norm.num_batches_tracked.fill_(1)  # type: ignore[union-attr]
        buffers.keep_left()
        lefts.append(buffers.left_bytes())
        buffers.rewind()
    for left in lefts:
        assert left is not None
        buffers.follow(start, left)
    assert (float(norm.running_var), float(norm.running_mean)) == (0.0, -1.0)  # type: ignore[arg-type]
    assert int(norm.num_batches_tracked) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [ASYNC, SSP], ids=name_of)
@pytest.mark.parametrize("others", [{"second": 2.0}, {}], ids=["another", "none"])
def test_workers_that_give_different_metrics_are_both_named(mode, others, tmp_path: Path) -> None:
    """Both workers have an item in hand before either pushes one."""
    both = threading.Barrier(2, timeout=30)

    def train(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        mine = others if threading.current_thread().name == "w1" else {"first": 1.0}
        for turn, rows in enumerate(session.batches(Numbers(), shuffle=False)):
            if turn == 0:
                both.wait()
            session.step(net(rows).mean(), **mine)

    spec = job(mode, workers={"min": 2, "max": 2})
    play = ThreadedCast(spec, train, artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert (
        f"w1 gave session.step the metrics {list(others)}" in play.message
        or f"w1 {list(others)}" in play.message
    )
    assert "w2" in play.message
    assert "['first']" in play.message
    assert not [values for _, values in play.values if set(values) >= {"first", "second"}]


def test_members_at_different_calls_fail_the_job_naming_both(tmp_path: Path) -> None:
    def astray(session: Session) -> None:
        net = session.model(Counts())
        session.optimizer(torch.optim.SGD(net.parameters(), lr=LR))
        for rows in session.batches(Numbers()):
            session.step(net(rows).mean())
        if threading.current_thread().name == "w1":
            session.evaluate(Numbers(), lambda rows: {"row": rows.float()})
        for rows in session.batches(Numbers()):
            session.step(net(rows).mean())

    play = ThreadedCast(job(ASYNC), astray, artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "call 1 (evaluate)" in play.message
    assert "call 1 (batches, epoch 1)" in play.message


@pytest.mark.parametrize("servers", [1, 2])
def test_without_staleness_no_step_is_made_before_all_workers_have_seen_the_one_before(
    servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third worker has no slice of the last batch but one, and computes the last batch, which is one slice, before
    the others leave the loop. What is called once a step finds the weights of that step."""
    left_at, idle, begun = 3, 2, threading.Event()
    seen: dict[str, list[float]] = {}
    few = TensorDataset(*(part[: left_at * SHARDS + 1] for part in DATA.tensors))

    def train(session: Session) -> None:
        mine = seen[threading.current_thread().name] = []
        net = session.model(copy.deepcopy(NET))
        session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
        weight = net.layers[0].weight
        session.on_commit(lambda: mine.append(float(weight.detach().double().sum())))
        for x, y in session.batches(few):
            if session.global_step == left_at:
                begun.set()
            session.step(F.cross_entropy(net(torch.cat([x, -x])), torch.cat([y, 1 - y])))
            if session.global_step == left_at:
                assert begun.wait(30), "nobody has the last batch"
                break

    lease = Leases.lease

    def to_whom(self: Leases, worker: int) -> Lease | None:
        batch = left_at if self.next is None else self.next // SHARDS
        others = {left_at: {idle}, left_at - 1: {0, 1}}.get(batch, {0, 1, 2})
        return lease(self, worker) if worker in others else None

    begun.set()
    size = {"global_size": SHARDS, "logical_shards": SHARDS}
    alone, _ = run_local(job({}, batch=size), train, tmp_path / "alone")
    (expected,) = seen.values()
    begun.clear()
    monkeypatch.setattr(Leases, "lease", to_whom)
    spec = job(STRICT | {"servers": servers}, batch=size, workers={"min": 3, "max": 3})
    play = ThreadedCast(spec, train, artifacts=tmp_path / "cast").play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert [step for step, _ in play.values] == list(range(1, left_at + 1))
    assert play.digest == alone.digest
    assert len(expected) == left_at
    assert all(seen[name] == expected for name in play.finished if name.startswith("w"))
