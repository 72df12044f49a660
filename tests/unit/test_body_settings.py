"""What a loop's body sets in an optimizer's parameter groups: it counts for the batch's update on every member, or it
is refused before that."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_body_checks import MODES, job
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from ringleader import Session
from ringleader.errors import StepMisuse
from ringleader.program_text.loop_bodies import SourceText
from ringleader.spec import JobSpec
from ringleader.train.body.setting_numbers import leaves
from ringleader.train.local import run_local

torch.set_num_threads(1)
BATCH = 16
EXACT = ["ring", "servers", "local_sgd"]


def rows(count: int = 50) -> TensorDataset:
    """Of the last batch two shards of four have a row."""
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


Line = Callable[[Session, torch.optim.Optimizer, Tensor], Any]


class Body:
    """A training function whose loop has one more line, before or behind `session.step`."""

    def __init__(self, line: Line, *, behind: bool = False, clip: float | None = None) -> None:
        self.line, self.behind, self.clip = line, behind, clip

    def __call__(self, session: Session) -> None:
        net = session.model(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)))
        for weight in net.parameters():  # the cast's members are threads, which share their generator
            nn.init.constant_(weight, 0.1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        session.optimizer(optimizer, clip_norm=self.clip)
        for _ in range(2):
            for x, y in session.batches(rows()):
                loss = F.cross_entropy(net(x), y)
                if not self.behind:
                    self.line(session, optimizer, loss)
                session.step(loss)
                if self.behind:
                    self.line(session, optimizer, loss)


def by_step(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + session.global_step)


def by_loss(session: Session, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.param_groups[0]["lr"] = loss.item()


def without_momentum(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
    optimizer.param_groups[0]["momentum"] = "none"


def add_group(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def drop_group(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
    optimizer.param_groups.pop()


class Own:
    """A loop as torch has it, for what the session must come to."""

    @staticmethod
    def weights(rate: Callable[[int], float]) -> list[Tensor]:
        net = nn.Linear(3, 1, bias=False)
        nn.init.constant_(net.weight, 0.5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.zero_grad()
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        return [p.detach() for p in net.parameters()]


def test_a_rate_by_the_step_is_the_one_that_torch_would_have_taken(tmp_path: Path) -> None:
    found = []

    def train(session: Session) -> None:
        net = session.model(nn.Linear(3, 1, bias=False))
        nn.init.constant_(net.weight, 0.5)
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for (x,) in session.batches(TensorDataset(torch.ones(4 * BATCH, 3))):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + session.global_step)
            session.step(net(x).mean())
        found.extend(p.detach().clone() for p in net.parameters())

    run_local(job("ring"), train, tmp_path)
    assert torch.allclose(found[0], Own.weights(lambda step: 0.1 / (1 + step))[0])


@pytest.mark.parametrize("mode", EXACT)
def test_who_has_no_slice_makes_the_update_with_the_same_rate(mode: str, tmp_path: Path) -> None:
    spec = job(MODES[mode]) | {"workers": {"min": 4, "max": 4}}
    alone, _ = run_local(spec, Body(by_step), tmp_path / "alone")
    play = ThreadedCast(JobSpec.parse(spec), Body(by_step), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    assert play.reported("member.differed") == []
    assert {end.reproducible_why for end in play.finished.values()} == {""}


def test_slices_begin_with_the_same_rate(tmp_path: Path) -> None:
    """Four of them halve it in each batch, which is one halving a batch."""
    rates = []

    def halve(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5
        rates.append((session.global_step, optimizer.param_groups[0]["lr"]))

    run_local(job("ring"), Body(halve), tmp_path)
    assert set(rates) == {(step, 0.1 * 0.5 ** (step + 1)) for step in range(8)}


@pytest.mark.parametrize("mode", [*EXACT, "leased"])
def test_what_is_set_behind_the_step_is_refused_with_its_line(mode: str, tmp_path: Path) -> None:
    why = r"'lr' was set to 0\.\d+ after session\.step.*test_body_settings\.py:\d+.*before session\.step\(loss\)"
    with pytest.raises(StepMisuse, match=why):
        run_local(job(MODES[mode]), Body(by_step, behind=True), tmp_path)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_a_schedule_that_the_body_steps_is_refused_with_what_to_write(tmp_path: Path) -> None:
    known: dict[int, LambdaLR] = {}

    def step(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
        known.setdefault(0, LambdaLR(optimizer, lambda step: 0.5**step)).step()

    with pytest.raises(StepMisuse, match=r"'lr' was set to .*session\.scheduler\(schedule\)"):
        run_local(job("ring"), Body(step, behind=True), tmp_path)


@pytest.mark.parametrize(("mode", "of"), [("ring", "slice of a batch"), ("local_sgd", "replica of a round")])
def test_slices_that_set_different_things_are_named(mode: str, of: str, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=f"'lr' was set to 0.* in one {of} and to 0.* in another"):
        run_local(job(MODES[mode]), Body(by_loss), tmp_path)


@pytest.mark.parametrize("mode", EXACT)
def test_workers_that_set_different_things_are_named(mode: str, tmp_path: Path) -> None:
    spec = JobSpec.parse(job(MODES[mode]) | {"workers": {"min": 4, "max": 4}})
    play = ThreadedCast(spec, Body(by_loss), artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "'lr' was set to 0" in play.message
    assert " on w" in play.message


@pytest.mark.parametrize("mode", ["leased", "async"])
def test_servers_that_lease_items_refuse_it_and_name_the_schedule_to_register(
    mode: str, tmp_path: Path
) -> None:
    leased = MODES["leased"] | ({"consistency": "async", "staleness": None} if mode == "async" else {})
    play = ThreadedCast(JobSpec.parse(job(leased)), Body(by_step), artifacts=tmp_path).play()
    assert (play.outcome, play.reason) == ("failed", "entrypoint_raised")
    assert "but parameter servers step the optimizer" in play.message
    assert "LambdaLR" in play.message


def by_cosine(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
    """As scripts write it, whose rate is numpy's."""
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (1 + np.cos(np.pi * session.global_step / 8)) / 2


def of_numpy(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
    optimizer.param_groups[0].update(lr=np.float32(0.1), nesterov=np.bool_(True), weight_decay=np.int64(0))


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("line", [by_cosine, of_numpy])
def test_numbers_of_numpy_are_numbers(line: Line, mode: str, tmp_path: Path) -> None:
    kinds = set()

    def look(session: Session, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        if session.global_step:
            kinds.update(type(value) for key, value in optimizer.param_groups[0].items() if key != "params")
        line(session, optimizer, loss)

    spec = job(MODES[mode]) | {"workers": {"min": 4, "max": 4}}
    alone, _ = run_local(spec, Body(line), tmp_path / "alone")
    play = ThreadedCast(JobSpec.parse(spec), Body(look), artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert play.digest == alone.digest
    assert kinds <= {float, int, bool, type(None)}


@pytest.mark.parametrize("where", ["between", "commit"])
def test_a_number_of_numpy_is_pythons_before_the_next_turn(where: str, tmp_path: Path) -> None:
    kinds = []

    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))

        def lower() -> None:
            optimizer.param_groups[0]["lr"] = np.float32(0.05)

        lower()
        if where == "commit":
            session.on_commit(lower)
        for x, y in session.batches(rows()):
            kinds.append(type(optimizer.param_groups[0]["lr"]))
            session.step(F.cross_entropy(net(x), y))

    run_local(job("ring"), train, tmp_path)
    assert set(kinds) == {float}


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "a new key": ({"lr": 0.05, "scale": 2.0}, r"'scale' was set to 2\.0, but did not exist before"),
    "a new key alone": ({"scale": 2.0}, r"'scale' was set to 2\.0, but did not exist before"),
    "a text beside a number": (
        {"lr": 0.05, "momentum": "none"},
        r"'momentum' was set to 'none', which is not a num",
    ),
    "another text": ({"lr": 0.05, "note": "late"}, r"'note' was set to 'late', which is not a number"),
    "a number for a text": ({"lr": 0.05, "note": 1}, r"'note' was set to 1, but was 'early' before"),
    "a pair for a number": (
        {"momentum": (0.9, 0.8)},
        r"'momentum' was set to \(0\.9, 0\.8\), but was 0\.9 before",
    ),
}


@pytest.mark.parametrize("unfit", UNFIT)
@pytest.mark.parametrize("mode", EXACT)
def test_what_other_members_cannot_take_over_is_refused_with_its_line(
    mode: str, unfit: str, tmp_path: Path
) -> None:
    settings, why = UNFIT[unfit]

    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        optimizer.param_groups[0]["note"] = "early"
        for x, y in session.batches(rows()):
            optimizer.param_groups[0].update(settings)
            session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match=why + r".*test_body_settings\.py:\d+"):
        run_local(job(MODES[mode]), train, tmp_path)


def test_a_deleted_key_is_refused(tmp_path: Path) -> None:
    def delete(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
        optimizer.param_groups[0].pop("dampening")

    with pytest.raises(StepMisuse, match="'dampening' was deleted"):
        run_local(job("ring"), Body(delete), tmp_path)


def test_a_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match=r"'momentum' was set to 'none', which is not a number"):
        run_local(job("ring"), Body(without_momentum), tmp_path)


@pytest.mark.parametrize("line", [add_group, drop_group])
def test_groups_are_not_changed_in_a_body(line: Line, tmp_path: Path) -> None:
    with pytest.raises(StepMisuse, match="parameters were added to an optimizer, or removed from it"):
        run_local(job("ring"), Body(line), tmp_path)


@pytest.mark.parametrize("mode", EXACT)
def test_what_the_turn_set_in_which_a_loop_is_left_is_refused(mode: str, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        for x, y in session.batches(rows()):
            if session.global_step == 2:
                optimizer.param_groups[0]["lr"] *= 0.5
                break
            session.step(F.cross_entropy(net(x), y))
        assert optimizer.param_groups[0]["lr"] == 0.1
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match=r"in the turn in which the loop was left.*Set it after the loop"):
        run_local(job(MODES[mode]), train, tmp_path)


@pytest.mark.parametrize("mode", ["ring", "local_sgd"])
def test_a_rate_that_is_a_tensor_stays_the_programs_own(mode: str, tmp_path: Path) -> None:
    """What the program sets through its name counts like a number set in the group."""

    def train(session: Session, rate: Any) -> None:
        net = session.model(nn.Linear(5, 2))
        nn.init.constant_(net.weight, 0.1)
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=rate))
        for number in range(3):
            for x, y in session.batches(rows()):
                session.step(F.cross_entropy(net(x), y))
            if isinstance(rate, Tensor):
                rate.fill_(0.5**number)
            else:
                optimizer.param_groups[0]["lr"] = 0.5**number

    digests = [
        run_local(job(MODES[mode]), partial(train, rate=rate), tmp_path)[0].digest
        for rate in (0.5, torch.tensor(0.5))
    ]
    assert digests[0] == digests[1]


IN_PLACE: dict[str, tuple[Callable[[], Any], Callable[[Any, float], Any]]] = {
    "a list": (lambda: [0.9, 0.99], lambda betas, value: betas.__setitem__(0, value)),
    "a list in a tuple": (lambda: ([0.9, 0.99], 1.0), lambda betas, value: betas[0].__setitem__(0, value)),
    "a tensor": (lambda: torch.tensor(0.9), lambda rate, value: rate.fill_(value)),
    "a tensor in a tuple": (lambda: (torch.tensor(0.9), 0.99), lambda betas, value: betas[0].fill_(value)),
}


@pytest.mark.parametrize("kind", IN_PLACE)
@pytest.mark.parametrize("mode", EXACT)
def test_what_a_body_changes_in_place_is_told_to_who_has_no_slice(
    kind: str, mode: str, tmp_path: Path
) -> None:
    """All members end with the settings of a loop that was there alone."""
    make, change = IN_PLACE[kind]
    ended: list[list[float]] = []

    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        for weight in net.parameters():
            nn.init.constant_(weight, 0.1)
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        group = optimizer.param_groups[0]
        group["note"] = make()
        for x, y in session.batches(rows()):
            change(group["note"], 0.5 / (1 + session.global_step))
            session.step(F.cross_entropy(net(x), y))
        ended.append([float(number) for key, number in leaves(group) if key == "note"])

    spec = job(MODES[mode]) | {"workers": {"min": 4, "max": 4}}
    play = ThreadedCast(JobSpec.parse(spec), train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)
    assert len(ended) >= 4
    last = 0.5 / (1 + (2 if mode == "local_sgd" else 3))
    assert {round(numbers[0], 6) for numbers in ended} == {round(last, 6)}, ended


@pytest.mark.parametrize("mode", EXACT)
def test_a_list_changed_in_place_behind_the_step_is_refused(mode: str, tmp_path: Path) -> None:
    def behind(session: Session, optimizer: torch.optim.Optimizer, _loss: Tensor) -> None:
        optimizer.param_groups[0].setdefault("betas", [0.9])[0] = 0.1 * session.global_step

    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        optimizer.param_groups[0]["betas"] = [0.9]
        for x, y in session.batches(rows()):
            session.step(F.cross_entropy(net(x), y))
            behind(session, optimizer, x)

    with pytest.raises(StepMisuse, match=r"'betas' was set to \[0\..*after session\.step"):
        run_local(job(MODES[mode]), train, tmp_path)


def test_an_array_changed_in_place_is_refused(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        rate = optimizer.param_groups[0]["scale"] = np.array(0.1)
        for x, y in session.batches(rows()):
            rate[...] = 0.05
            session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match=r"'scale' was set to array\(0\.05\), which is not a number"):
        run_local(job("ring"), train, tmp_path)


@pytest.mark.parametrize("mode", EXACT)
def test_numbers_in_tuples_of_tuples_are_numbers(mode: str, tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        for weight in net.parameters():
            nn.init.constant_(weight, 0.1)
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        optimizer.param_groups[0]["pairs"] = ((0.1, 0.2), 0.3)
        for x, y in session.batches(rows()):
            optimizer.param_groups[0]["pairs"] = ((0.1, 1.0 + session.global_step), 0.3)
            session.step(F.cross_entropy(net(x), y))
        last = 2.0 if mode == "local_sgd" else 3.0
        assert optimizer.param_groups[0]["pairs"] == ((0.1, 1.0 + last), 0.3)

    spec = JobSpec.parse(job(MODES[mode]) | {"workers": {"min": 4, "max": 4}})
    play = ThreadedCast(spec, train, artifacts=tmp_path).play()
    assert play.outcome == "succeeded", (play.reason, play.message)


@pytest.mark.parametrize("mode", ["ring", "servers"])
def test_a_rate_set_twice_and_set_back_counts_as_it_was_left(mode: str, tmp_path: Path) -> None:
    """A tensor filled in place, too; groups may come between two loops; a loop may be left and begun again."""
    found: list[tuple[int, float]] = []

    def train(session: Session, *, tensor: bool) -> None:
        net = session.model(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)))
        for weight in net.parameters():
            nn.init.constant_(weight, 0.1)
        rate: Any = torch.tensor(0.1) if tensor else 0.1
        optimizer = session.optimizer(torch.optim.SGD(net[0].parameters(), lr=rate))

        def put(value: float) -> None:
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(value)
                else:
                    group["lr"] = value

        for number in range(3):
            for x, y in session.batches(rows()):
                found.append((session.global_step, float(optimizer.param_groups[0]["lr"])))
                put(9.0)
                put({1: 0.05, 3: 0.2}.get(session.global_step, found[-1][1]))
                if number == 1 and session.global_step == 5:
                    break
                session.step(F.cross_entropy(net(x), y))
            if not number:
                optimizer.add_param_group({"params": net[1].parameters(), "lr": 0.1})
            put(0.1 if number else 0.3)

    for tensor in (False, True):
        found.clear()
        run_local(job(MODES[mode]), partial(train, tensor=tensor), tmp_path)
        rates = {step: {round(rate, 6) for at, rate in found if at == step} for step, _ in found}
        assert rates == {
            **{0: {0.1}, 1: {0.1}, 2: {0.05}, 3: {0.05}, 4: {0.3}},
            **{5: {0.3, 0.1}, 6: {0.1}, 7: {0.1}, 8: {0.1}},
        }, (tensor, rates)


def test_a_registered_schedule_and_the_body_do_not_meet_in_a_round(tmp_path: Path) -> None:
    def train(session: Session) -> None:
        net = session.model(nn.Linear(5, 2))
        optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        session.scheduler(LambdaLR(optimizer, lambda step: 0.5**step))
        for x, y in session.batches(rows()):
            optimizer.param_groups[0]["lr"] = 0.01
            session.step(F.cross_entropy(net(x), y))

    with pytest.raises(StepMisuse, match="was set although a schedule is registered"):
        run_local(job(MODES["local_sgd"]), train, tmp_path)


GROUP = """
def train(session):
    group = optimizer.param_groups[0]
    rate = optimizer.param_groups[0]["lr"]
    for x, y in session.batches(rows):
        group["lr"] *= 0.9
        optimizer.param_groups[0]["momentum"] *= 0.9
        rate *= 0.9
    group["lr"] /= 2
    optimizer.param_groups[0]["momentum"] *= rate
"""


def test_settings_do_not_differ_from_worker_to_worker_and_a_number_read_from_them_does() -> None:
    assert {escape.key[1] for escape in SourceText(GROUP).escapes.values()} == {"rate"}


KEEPERS = """
def keeps(session):
    bank = Bank()
    session.keep("bank", bank)
    run(session, bank)

def run(session, bank):
    for x, y in session.batches(rows):
        bank = mixed(bank, x)
    decide(bank)

def other(session):
    bank = 0.0
    for x, y in session.batches(rows):
        bank = bank + x.sum()
    decide(bank)
"""


def test_a_name_that_one_program_of_a_file_keeps_is_not_kept_in_the_others() -> None:
    text = SourceText(KEEPERS)
    assert [(escape.key[1], escape.scope) for escape in text.escapes.values()] == [("bank", "other")]


ON_ONE_LINE = """
def train(session):
    for x, y in session.batches(rows):
        out = net(x); loss = criterion(out, y)
        session.step(loss)
"""


def test_statements_of_one_line_are_taken_one_after_the_other() -> None:
    assert SourceText(ON_ONE_LINE).carried == {}


BANK = """
def train(session):
    bank = torch.zeros(3)
    for i, (x, y) in session.batches(rows):
        {}
        session.step(net(y, seen))
"""


@pytest.mark.parametrize(
    "line",
    [
        "seen = bank[i]; bank[i] = x",
        "seen = bank; bank = x",
        "bank.mul_(0.9).add_(x); seen = bank.mean()",
        "seen = [bank.mean()]; bank[i] = x; print(i)",
    ],
)
def test_what_one_statement_of_a_line_reads_and_another_one_changes_is_carried(line: str) -> None:
    for program in (line, line.replace("; ", "\n        ")):
        assert [key[1] for key in SourceText(BANK.format(program)).carried] == ["bank"], program


@pytest.mark.parametrize("line", ["bank[i] = bank[i] * 0.9; seen = x", "bank.append(x); seen = x"])
def test_what_a_statement_reads_to_change_it_is_not(line: str) -> None:
    assert SourceText(BANK.format(line)).carried == {}
