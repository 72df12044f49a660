"""The control word survives a sum exactly, whatever the order of the members."""

import pytest
import torch
from torch import nn

from ringleader.elastic import NOWHERE, Plan
from ringleader.errors import CallMismatch
from ringleader.train.generation.agreement import agreed
from ringleader.train.generation.control_word import (
    BATCHES,
    EVALUATE,
    KnownFindings,
    ProgramPosition,
    SliceReport,
    WordLayout,
)
from ringleader.train.state.buffers import CommittedBuffers

LAYOUT = WordLayout(members=4, shards=4, parameters=3, buffers=0)


def _word(rank: int, lanes: dict[int, float], **changes: object) -> torch.Tensor:
    facts: dict[str, object] = {
        "call": 5,
        "kind": EVALUATE,
        "step": 17,
        "pending": False,
        "stop": False,
    } | changes
    return LAYOUT.write(
        rank=rank,
        slices={k: SliceReport(float(k + 1), torch.tensor(loss), 0xABCDEF - k) for k, loss in lanes.items()},
        used=[rank == 0, True, False],
        buffers=None,
        **facts,  # type: ignore[arg-type]
    )


def test_every_member_reads_the_same_report_in_any_order_of_the_sum() -> None:
    words = [_word(0, {0: 1.5, 1: 2.5}), _word(1, {2: 3.5}), _word(2, {3: 4.5}, pending=True)]
    forward = LAYOUT.read(words[0] + words[1] + words[2], world=3, present=[0, 1, 2, 3])
    backward = LAYOUT.read(words[2] + (words[1] + words[0]), world=3, present=[0, 1, 2, 3])
    assert forward == backward
    assert forward.pending
    assert not forward.stop
    assert forward.weight == 10
    assert forward.loss == (1 * 1.5 + 2 * 2.5 + 3 * 3.5 + 4 * 4.5) / 10
    assert forward.checksums == {k: 0xABCDEF - k for k in range(4)}
    assert forward.used == [True, True, False]
    positions = LAYOUT.positions(words[0] + words[1] + words[2], world=3, near=17)
    assert positions == [ProgramPosition(5, "evaluate", 17)] * 3
    assert LAYOUT.pending(words[0] + words[2], world=3)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize(
    "known",
    [[(False, 0), (False, 0)], [(True, 0), (False, 1)], [(False, 4), (False, 2)], [(True, 4), (True, 4)]],
)
def test_what_any_member_knows_of_the_program_all_know_by_the_word(
    known: list[tuple[bool, int]], repeats: bool
) -> None:
    words = [_word(rank, {}, known=KnownFindings(*each)) for rank, each in enumerate(known)]
    words.append(_word(2, {0: 1.0}, repeats=repeats))
    reduced = sum(words, torch.zeros(LAYOUT.length))
    report = LAYOUT.read(reduced, world=3, present=[0])
    found, checked = zip(*known, strict=True)
    assert LAYOUT.known(reduced, world=3) == KnownFindings(any(found), max(checked))
    assert report.repeats == repeats


def test_a_member_at_another_call_shows_in_the_positions() -> None:
    word = _word(0, {0: 1.0}) + _word(1, {1: 1.0}, call=6, kind=BATCHES + 2)
    positions = LAYOUT.positions(word, world=2, near=17)
    assert positions == [ProgramPosition(5, "evaluate", 17), ProgramPosition(6, "batches, epoch 2", 17)]


@pytest.mark.parametrize(
    "steps", [(0, 3), (2**24 - 1, 2**24), (2**24, 2**24 - 2), (5 * 2**24 + 3, 5 * 2**24)]
)
def test_a_difference_is_told_with_the_steps_as_they_are_however_many(steps: tuple[int, int]) -> None:
    """A word holds a step's lower 24 bits alone."""
    word = _word(0, {}, step=steps[0]) + _word(1, {}, step=steps[1], call=6)
    plan = Plan(
        attempt=1,
        generation=1,
        members=("w0", "w1"),
        servers=0,
        shards=4,
        start_transaction=0,
        heals=(),
        recorded_step=0,
        meeting=NOWHERE,
        cause="start",
    )
    told = rf"rank 0 .* step {steps[0]}; rank 1 .* step {steps[1]}\."
    with pytest.raises(CallMismatch, match=told):
        agreed(LAYOUT, word, plan, rank=0, step=steps[0])


def test_a_loss_that_is_not_a_number_reaches_everybody() -> None:
    report = LAYOUT.read(_word(0, {0: float("nan")}) + _word(1, {1: 1.0}), world=2, present=[0, 1])
    assert report.loss != report.loss


def test_buffers_of_any_type_travel_bit_for_bit() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.tensor([-0.0, float("inf"), 1e-45, 3.14]))
            self.register_buffer("b", torch.tensor([2**40 + 3], dtype=torch.int64))
            self.register_buffer("wide", torch.tensor([1 - 2j], dtype=torch.complex128))
            self.register_buffer("c", torch.tensor([True, False, True]))
            self.register_buffer("constant", torch.ones(5), persistent=False)

    sender, receiver = Odd(), Odd()
    with torch.no_grad():
        receiver.a.zero_()
        receiver.b.zero_()
        receiver.c.zero_()
        receiver.wide.zero_()
    source, target = CommittedBuffers([sender]), CommittedBuffers([receiver])
    source.keep_left()
    encoded = source.encode()
    assert encoded is not None
    assert len(encoded) == source.word_length
    target.commit(encoded + torch.zeros_like(encoded))
    assert receiver.a.view(torch.int32).tolist() == sender.a.view(torch.int32).tolist()
    assert torch.equal(receiver.b, sender.b)
    assert torch.equal(receiver.c, sender.c)
    assert torch.equal(receiver.wide, sender.wide)


def test_a_slice_starts_from_the_committed_buffers() -> None:
    net = nn.BatchNorm1d(2)
    buffers = CommittedBuffers([net])
    net(torch.randn(8, 2))
    buffers.rewind()
    assert torch.equal(net.running_mean, torch.zeros(2))  # type: ignore[arg-type]


def test_a_broken_step_leaves_a_donor_with_the_committed_buffers() -> None:
    net = nn.BatchNorm1d(2)
    buffers = CommittedBuffers([net])
    net(torch.randn(8, 2))
    buffers.keep_left()
    buffers.forget()
    assert torch.equal(net.state_dict()["running_mean"], torch.zeros(2))
    assert buffers.encode() is None
