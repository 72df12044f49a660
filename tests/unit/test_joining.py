"""Joiners that follow a member until they are level, among threads: what happens to them and to those they follow."""

import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import ANY, FaultPlan
from joining import check, healed, spec, train, undisturbed
from play import Play
from threaded_cast import ThreadedCast
from torch import Tensor, nn
from waiting import wait_for

from ringleader.comm.communicator import Communicator
from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.comm.transports.inprocess import Hub, InProcessTransport
from ringleader.exchange.side_channel import SideChannel
from ringleader.spec import JobSpec
from ringleader.train.body.call_checks import CallChecks
from ringleader.train.generation.joining import donor as join_donor
from ringleader.train.generation.joining.briefing import JoinBriefing
from ringleader.train.generation.joining.donor import DONOR, CopyMemory, JoinerDonation, room_for, views

GUARD_S = 30.0

NEVER_LEVEL: dict[str, Any] = {"worker": "w2", "at_step": ANY, "phase": "in_sync", "for_generation": 99}
"""As long as whom it follows lives."""


def perform(workers: tuple[int, int], cues: FaultPlan, tmp_path: Path, **how: Any) -> Play:
    torch.set_num_threads(1)
    play = ThreadedCast(
        spec(workers), partial(train, **how), cues, artifacts=tmp_path, joiners_follow=True
    ).play()
    check(play)
    return play


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that changes weights is refused in its turn, where that is seen: of large weights that change through
    `.data` it is not, and joiners must cost no bit there either."""
    monkeypatch.setattr(CallChecks, "_check_weights", lambda _checks: None)


def test_who_joins_while_the_group_goes_on_ends_with_the_same_bits(tmp_path: Path):
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=2, workers_max=3)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    play = perform((1, 1), cues, tmp_path, adam=True)
    assert play.worlds == [1, 3]
    assert healed(play) == set()
    assert play.digest == undisturbed(adam=True)


def test_a_joiner_whose_donor_is_killed_follows_another_one(tmp_path: Path):
    cues = FaultPlan().resize(at_step=2, workers_min=1, workers_max=3).hold(**NEVER_LEVEL)
    cues = cues.kill("w1", at_step=ANY, phase="donating", past=2)
    play = perform((2, 2), cues.dawdle("w0", from_step=3, for_generation=3), tmp_path)
    donors = [pair.donor for pair in play.pairs if pair.worker == "w2"]
    assert (donors[0], set(donors[1:])) == ("w1", {"w0"})
    assert [loss["worker"] for loss in play.reported("worker.lost")] == ["w1"]
    assert play.worlds[:2] == [2, 1]
    assert "w2" not in healed(play)
    assert play.digest == undisturbed()


def test_a_joiner_that_is_needed_is_healed_while_the_others_wait(tmp_path: Path):
    cues = FaultPlan().resize(at_step=2, workers_min=2, workers_max=3).hold(**NEVER_LEVEL)
    cues = cues.kill("w1", at_step=ANY, phase="donating", past=2)
    cues = cues.hold("w3", at_step=ANY, phase="parked", for_generation=2)  # or it might be there before w2 is
    play = perform((2, 2), cues.dawdle("w0", from_step=3, for_generation=2), tmp_path)
    assert play.plans[1].members == ("w0", "w2")
    assert "w2" in healed(play)
    assert play.digest == undisturbed()


def test_a_joiner_that_is_killed_while_it_follows_takes_nothing_along(tmp_path: Path):
    cues = (
        FaultPlan().resize(at_step=2, workers_min=2, workers_max=3).kill("w2", at_step=ANY, phase="in_sync")
    )
    play = perform((2, 2), cues.dawdle("w0", from_step=3, for_generation=2), tmp_path)
    assert play.plans[1].members == ("w0", "w1", "w3")
    assert healed(play) == set()
    assert play.digest == undisturbed()


def test_a_joiner_that_is_too_slow_twice_is_healed_while_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(join_donor, "KEPT_STATES", 0)
    monkeypatch.setattr(join_donor, "SPARE_STEPS", 0)
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=1, workers_max=2)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    play = perform((1, 1), cues, tmp_path)
    assert play.tries("w1") == 2
    assert healed(play) == {"w1"}
    assert play.digest == undisturbed()


def test_what_the_program_sets_in_a_parameter_group_reaches_who_follows(tmp_path: Path):
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=2, workers_max=2)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    play = perform((1, 1), cues, tmp_path, decays=True)
    assert healed(play) == set()
    assert play.digest == undisturbed(decays=True)


@pytest.mark.parametrize("step", [2, 7], ids=["first epoch", "second epoch, after a rehearsal of the first"])
def test_what_the_program_changes_in_a_large_kept_object_reaches_who_follows(step: int, tmp_path: Path):
    cues = FaultPlan().resize(at_step=step, workers_min=2, workers_max=2)
    cues = cues.dawdle("w0", from_step=step + 1, for_generation=2)
    play = perform((1, 1), cues, tmp_path, shifts=True)
    assert healed(play) == set()
    assert play.digest == undisturbed(shifts=True)


@pytest.mark.usefixtures("unseen")
def test_who_follows_a_program_that_changes_weights_is_healed_while_the_others_wait(tmp_path: Path):
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=1, workers_max=2)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    play = perform((1, 1), cues, tmp_path, touches=True)
    assert play.tries("w1") == 2
    assert healed(play) == {"w1"}
    assert play.digest == undisturbed(touches=True)


def clamp(_step: int, net: nn.Module) -> None:
    """As a critic's weights are in a WGAN."""
    for parameter in net.parameters():
        parameter.data.clamp_(-0.25, 0.25)


def forget_statistics(_step: int, net: nn.Module) -> None:
    net[2].running_mean.data.zero_()  # type: ignore[index]
    net[2].running_var.data.fill_(1)  # type: ignore[index]


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize(
    "how", [{"behind": clamp}, {"before": clamp, "adam": True}], ids=["behind", "before"]
)
def test_weights_clamped_through_data_while_a_joiner_follows_cost_a_heal_and_no_bit(
    how: dict[str, Any], tmp_path: Path
):
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=1, workers_max=2)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    play = perform((1, 1), cues, tmp_path, **how)
    assert play.tries("w1") == 1
    assert play.worlds == [1, 2]
    assert healed(play) == {"w1"}
    ((worker, what),) = [(t["worker"], t["what"]) for t in play.reported("worker.astray")]
    assert worker == "w1"
    assert what in {"unused", "1.weight"}  # the first of all weights, where averages moved it before the copy
    assert play.digest == undisturbed(**how)


class Once:
    """One frozen value is another one, from the first step on that begins behind a joiner's copy of the state."""

    def __init__(self, copied: threading.Event) -> None:
        self.copied = copied
        self.at: int | None = None

    def __call__(self, step: int, net: nn.Module) -> None:
        if self.at is None and self.copied.is_set():
            self.at = step
        if self.at == step:
            net.unused.data[1] = 2


@pytest.mark.usefixtures("unseen")
def test_a_weight_that_changed_once_through_data_after_the_copy_costs_a_heal_and_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copied, copy = threading.Event(), JoinerDonation.copy

    def noted(self: JoinerDonation, *what: Any) -> None:
        copy(self, *what)
        self.await_copy()  # what changes before that is in the copy
        copied.set()

    monkeypatch.setattr(JoinerDonation, "copy", noted)
    once = Once(copied)
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=1, workers_max=2)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    play = perform((1, 1), cues, tmp_path, before=once)
    assert healed(play) == {"w1"}
    assert [told["what"] for told in play.reported("worker.astray")] == ["unused"]
    assert play.digest == undisturbed(before=once)


def test_statistics_that_are_set_behind_the_step_are_put_back_before_somebody_joins(tmp_path: Path):
    cues = (
        FaultPlan()
        .resize(at_step=2, workers_min=1, workers_max=2)
        .dawdle("w0", from_step=3, for_generation=2)
    )
    play = perform((1, 1), cues, tmp_path, behind=forget_statistics)
    assert healed(play) == set()
    assert play.digest == undisturbed(behind=forget_statistics)


@pytest.mark.parametrize(
    ("keys", "followed"),
    [
        ({}, True),
        ({"sync": {"reproducible": False}}, True),
        ({"sync": {"codec": "int8"}}, False),
        ({"sync": "parameter_server"}, False),
        ({"sync": "token_ring"}, False),
        ({"sync": "local_sgd"}, False),
    ],
)
def test_joiners_follow_where_every_worker_makes_every_update_in_host_memory(
    keys: dict[str, Any], followed: bool
):
    assert spec((1, 2), **keys).followed is followed


def test_a_joiner_on_devices_is_healed():
    assert not JobSpec.parse(
        spec((1, 2)).model_dump() | {"workers": {"min": 1, "max": 2, "gpus": 1}}
    ).followed


def test_no_update_begins_before_what_it_changes_has_been_copied(monkeypatch: pytest.MonkeyPatch):
    may_copy, copy_all = threading.Event(), join_donor.copy_all

    def slow(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        if threading.current_thread().name == "ringleader-donor":
            assert may_copy.wait(GUARD_S)
        copy_all(pairs)

    monkeypatch.setattr(join_donor, "copy_all", slow)
    hub = Hub(2)
    weights, buffers = torch.ones(1000), torch.ones(1000)
    brief, rooms = (
        JoinBriefing(0, (), (), (), {"seen": {}}, ((), -1)),
        CopyMemory(room_for([weights, buffers]), room_for([weights])),
    )
    donation = JoinerDonation(InProcessTransport(hub, 0), brief, rooms)
    joiner = SideChannel(Communicator(InProcessTransport(hub, 1)))
    joiner.send_state(DONOR, packed(0, joiner.seal))
    joiner.receive_state(DONOR)
    joiner.all_reduce(torch.ones(1, dtype=torch.float64))
    wait_for("room for the copy", lambda: donation.waits)
    donation.copy(b"", [weights, buffers], late={weights.data_ptr()})
    buffers.zero_()

    def update() -> None:
        donation.await_copy()
        weights.zero_()

    updating = threading.Thread(target=update)
    updating.start()
    updating.join(0.2)
    assert updating.is_alive()
    may_copy.set()
    head = unpacked_of_any_type(joiner.receive_state(DONOR), joiner.seal)
    memory = joiner.receive_state(DONOR)
    updating.join(GUARD_S)
    assert not weights.any()
    assert all(bool(tensor.all()) for tensor in views(memory, head["kinds"]))
    donation.void()
