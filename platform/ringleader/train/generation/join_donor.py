"""What a member gives to workers that come in late: what of the program is over, for who has yet to run its lines; else
a copy of its state, then each step's gradients, until they join.

The copy is that of a boundary: what only an update changes is copied beside the next step's computing, by the thread
that sends it, and the update waits for it. Gradients are copied before they are applied. All is sent over a connection
of its own, so that the group goes on. At every planned boundary the small rest of the state is sent too, with prints of
all that is not sent: whoever is level by then, and holds the same, joins with it.
"""

import copy
import queue
import threading
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ringleader.checkpoint.pieces import take_apart
from ringleader.comm.communicator import Communicator
from ringleader.comm.objects import packed, unpacked
from ringleader.comm.transports import Transport
from ringleader.errors import ExchangeBroken
from ringleader.exchange.side_channel import SideChannel
from ringleader.train.generation.control_word import StepReport
from ringleader.train.generation.join_briefing import JoinBriefing
from ringleader.train.state.fingerprints import prints

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member

DONOR, JOINER = 0, 1
"""Ranks of the two on their connection."""

STATE, STEP, BOUNDARY = "state", "step", "boundary"
KEPT_STATES = 2
"""Gradients that are not sent yet may take so many times the bytes of the state; with more the joiner is too slow."""

SPARE_STEPS = 2
COPY_DEADLINE_S = 10.0
SMALL_BYTES = 1 << 20
"""A kept object up to this size is sent again at the boundary; a larger one is what callbacks make of it, unless the
program has changed it."""

ALIGNED = 64


class JoinDonor:
    """One member's. Called from its training thread."""

    def __init__(self, group: "Member") -> None:
        self._group = group
        self._donations: list[JoinerDonation] = []
        self._weights: list[Parameter] = []
        self._marks: list[tuple[int, int]] = []

    def committed(self, *, leaves: bool) -> None:
        """All that is applied is committed: begin with who has come, copy the state for who is ready for it.

        Args:
            leaves: this generation is over, so nobody begins.
        """
        if not leaves:
            self.answer()
            for donation in self._donations:
                if donation.waits:
                    donation.copy(*take_apart(self._state()), self._group.held.updated_places())
        if any(donation.follows for donation in self._donations):
            self._marks = self._group.held.marks(self._weights)

    def answer(self) -> None:
        """A transaction is committed, and this generation goes on: begin with who has come."""
        for transport in self._group.coordinator.joiners():
            self._begin(transport)
        self._donations = [donation for donation in self._donations if not donation.over]

    def reduced(
        self, report: StepReport, rows: int, buffers: Tensor | None, *, skipped: bool = False
    ) -> None:
        """The sums of a step are complete in the parameters' gradients, and will be applied.

        Args:
            rows: of the batch; where the slices weigh something else the sums have to be scaled.
            skipped: the gradients have overflowed, no weight will change.
            buffers: the encoded buffers in the reduced word; None where the first shard was absent.
        """
        for donation in self._donations:
            donation.await_copy()
        following = self._following()
        if not following:
            return
        reached = [used and not skipped for used in report.used]
        grads = [p.grad for p, used in zip(self._group.parameters, reached, strict=True) if used]
        head = {
            "kind": STEP,
            "used": reached,
            "skipped": skipped,
            "factor": 1.0 if report.weight == rows else rows / report.weight,
            "settings": self._group.held.settings(),
            "kept": copy.deepcopy(self._changed(self._kept())),
            "loss": report.loss,
            "buffers": None if buffers is None else buffers.clone(),
        }
        for donation in following:
            donation.add(head, [grad for grad in grads if grad is not None])

    def boundary(self) -> None:
        """All members leave the generation at this committed step."""
        following = self._following()
        if following:
            rest = self._rest()
            for donation in following:
                donation.end(rest)

    def void(self) -> None:
        """The running generation broke: what has been sent may not be what the others will go on from."""
        donations, self._donations = self._donations, []
        for donation in donations:
            donation.void()

    def _following(self) -> list["JoinerDonation"]:
        """Those who have had all that this member has: nobody, once its program changed weights since the commit."""
        following = [donation for donation in self._donations if donation.follows]
        if not following or self._marks == self._group.held.marks(self._weights):
            return following
        for donation in following:
            donation.void()
        return []

    def _begin(self, transport: Transport) -> None:
        group, rooms = self._group, None
        if group.spec.followed and not group.tables:  # their gradients are rows
            self._weights = group.held.weights
            rooms = CopyMemory(room_for(take_apart(self._state())[1]), room_for(group.trained.parameters))
        self._donations.append(JoinerDonation(transport, JoinBriefing.of(group), rooms))

    def _state(self) -> dict[str, Any]:
        group = self._group
        return group.held.state(group.healing.rest({}, since=group.sections.count))

    def _rest(self) -> dict[str, Any]:
        held = self._group.held
        kept = self._kept()
        small = {name: state for name, state in kept.items() if _size(*take_apart(state)) <= SMALL_BYTES}
        sent = small | self._changed(kept)
        return {
            "rest": self._group.healing.rest({}),
            "schedulers": [scheduler.state_dict() for scheduler in held.schedulers],
            "settings": held.settings(),
            "kept": sent,
            "prints": prints(held, {name: state for name, state in kept.items() if name not in sent}),
        }

    def _kept(self) -> dict[str, Any]:
        return {name: kept.state_dict() for name, kept in self._group.held.kept.items()}

    def _changed(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Of the states of kept objects those that are not what the callbacks of the last step have left: the program,
        which does not run in who follows, has changed them since."""
        left = self._group.held.committed_kept
        return {name: state for name, state in kept.items() if not _same(state, left.get(name))}


@dataclass(frozen=True, slots=True)
class CopyMemory:
    """Bytes of memory for a copy of the state, and for a step's gradients."""

    state_bytes: int
    step_bytes: int


class JoinerDonation:
    """One joiner's. `_serve` runs on a thread of its own, everything else on the training thread.

    Attributes:
        follows: the state has been copied for it, so that it needs every step from there on.
        over: it has joined, or has its brief, or is gone, or was given up.
    """

    def __init__(self, transport: Transport, brief: JoinBriefing, rooms: CopyMemory | None) -> None:
        """`rooms`: None where nobody can follow."""
        self.follows = False
        self.over = False
        self._brief = brief
        self._rooms = rooms
        self._communicator = Communicator(transport)
        self._lock = threading.Lock()
        self._kept_bytes = 0
        self._room: Tensor | None = None
        self._late: list[tuple[Tensor, Tensor]] = []
        self._copied = threading.Event()
        self._spare: list[Tensor] = []
        self._parts: queue.SimpleQueue[tuple[dict[str, Any], Tensor] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="ringleader-donor", daemon=True).start()

    @property
    def waits(self) -> bool:
        """Whether there is room for the copy, and nothing in it."""
        return self._room is not None and not self.follows

    def copy(self, skeleton: bytes, tensors: Sequence[Tensor], late: Container[int]) -> None:
        """Copy the state that stands now.

        Args:
            late: where those lie that stay as they are until `await_copy` has returned.
        """
        room, self._room = self._room, None
        assert room is not None
        size = room_for(tensors)
        memory = room[:size] if size <= room.numel() else torch.empty(size, dtype=torch.uint8)
        kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
        places = list(zip(views(memory, kinds), tensors, strict=True))
        copy_all((view, tensor) for view, tensor in places if tensor.data_ptr() not in late)
        self._late = [(view, tensor) for view, tensor in places if tensor.data_ptr() in late]
        self._parts.put(({"kind": STATE, "skeleton": skeleton, "kinds": kinds}, memory))
        self.follows = True

    def await_copy(self) -> None:
        """What `copy` was given may change from here on."""
        if self.follows and not self._copied.wait(COPY_DEADLINE_S):
            self.void()

    def add(self, head: dict[str, Any], grads: Sequence[Tensor]) -> None:
        rooms = self._rooms
        assert rooms is not None
        with self._lock:
            self._kept_bytes += rooms.step_bytes
            slow = self._kept_bytes > max(KEPT_STATES * rooms.state_bytes, SPARE_STEPS * rooms.step_bytes)
            memory = self._spare.pop() if self._spare else torch.empty(rooms.step_bytes, dtype=torch.uint8)
        if slow:
            self.void()
            return
        memory = memory[: room_for(grads)]
        fill(memory, grads)
        self._parts.put((head, memory))

    def end(self, rest: dict[str, Any]) -> None:
        self._parts.put(({"kind": BOUNDARY}, packed(rest, self._communicator.seal)))

    def void(self) -> None:
        self.over, self.follows = True, False
        self._communicator.abort()
        self._parts.put(None)

    def _serve(self) -> None:
        side = SideChannel(self._communicator)
        try:
            if not self._tell(side) or self._rooms is None:
                return
            # Pages are touched here, so that the training thread finds them ready.
            self._spare = [_touched(self._rooms.step_bytes) for _ in range(SPARE_STEPS)]
            self._room = _touched(self._rooms.state_bytes)
            while (part := self._parts.get()) is not None:
                if self._send(side, *part):
                    break
        except ExchangeBroken:
            pass  # the joiner is gone
        finally:
            self.over, self.follows = True, False
            self._copied.set()
            self._communicator.close()

    def _tell(self, side: SideChannel) -> bool:
        """What the joiner does not know of the program. Returns whether it stays: else it has lines to run first."""
        known = unpacked(side.receive_state(JOINER), side.seal)
        told = self._brief.since(known) | {"followed": self._rooms is not None}
        side.send_state(JOINER, packed(told, side.seal))
        return bool(side.all_reduce(torch.zeros(1, dtype=torch.float64)))

    def _send(self, side: SideChannel, head: dict[str, Any], memory: Tensor) -> bool:
        """Whether the joiner joins with this."""
        if head["kind"] == STATE:
            copy_all(self._late)
            self._late = []
            self._copied.set()
        side.send_state(JOINER, packed(head | {"behind": self._parts.qsize()}, side.seal))
        side.send_state(JOINER, memory)
        if head["kind"] == STEP:
            assert self._rooms is not None
            with self._lock:
                self._kept_bytes -= self._rooms.step_bytes
                self._spare.append(_whole(memory))
        return head["kind"] == BOUNDARY and bool(side.all_reduce(torch.zeros(1, dtype=torch.float64)))


def room_for(tensors: Sequence[Tensor]) -> int:
    """Bytes of memory that `fill` needs."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def fill(memory: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the tensors into (n,) uint8, one after the other."""
    kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    copy_all(zip(views(memory, kinds), tensors, strict=True))


@torch.no_grad()
def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for view, tensor in pairs:
        view.copy_(tensor)


def views(memory: Tensor, kinds: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> list[Tensor]:
    """What `fill` put into the memory, where it lies."""
    found, start = [], 0
    for dtype, shape in kinds:
        size = dtype.itemsize * torch.Size(shape).numel()
        found.append(memory[start : start + size].view(dtype).view(shape))
        start += _aligned(size)
    return found


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _size(skeleton: bytes, tensors: Sequence[Tensor]) -> int:
    return len(skeleton) + sum(tensor.nbytes for tensor in tensors)


def _same(one: Any, other: Any) -> bool:
    """Whether two states have the same bits. Where their pickles differ for another reason the answer is no."""
    (skeleton, tensors), (others_skeleton, others) = take_apart(one), take_apart(other)
    return skeleton == others_skeleton and all(map(_same_bits, tensors, others))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    raw, others = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(raw, others)


def _touched(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8).fill_(1)


def _whole(memory: Tensor) -> Tensor:
    """The memory that a part of it was sent from."""
    base = memory._base
    return memory if base is None else base
