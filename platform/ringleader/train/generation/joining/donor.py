"""A member's donations to workers that come in late: a briefing on finished calls for those that have yet to run their
lines; else a copy of its state, then each step's gradients, until they join.

The copy is that of a boundary: what only an update changes is copied beside the next step's computing, by the thread
that sends it, and the update waits for it. Gradients are copied before they are applied. All is sent over a connection
of its own, so that the group goes on. At every planned boundary the small rest of the state is sent too, with
fingerprints of all that is not sent: a joiner that is level by then, and holds the same, joins with it.
"""

import copy
import queue
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from ringleader.checkpoint.pieces import COMPARED, take_apart
from ringleader.comm.communicator import Communicator
from ringleader.comm.objects import packed, unpacked
from ringleader.comm.transports import Transport
from ringleader.errors import ExchangeBroken
from ringleader.exchange.side_channel import SideChannel
from ringleader.train.body.phases import PhaseUpdate
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.control_word import StepReport
from ringleader.train.generation.exchange_layout import ExchangeLayout
from ringleader.train.generation.joining.briefing import JoinBriefing
from ringleader.train.state.fingerprints import prints
from ringleader.train.state.parameters.tensor_fingerprint import bytes_of
from ringleader.train.state.parameters.tensor_version import marks, places
from ringleader.train.state.parameters.trained import TrainedParameters

DONOR, JOINER = 0, 1
"""The two ranks on their connection."""

STATE, STEP, BOUNDARY = "state", "step", "boundary"
KEPT_STATES = 2
"""The bound of gradients not sent yet, in multiples of the state's bytes; beyond it the joiner is too slow."""

SPARE_STEPS = 2
COPY_DEADLINE_S = 10.0
SMALL_BYTES = 1 << 20
"""A kept object up to this size is sent again at the boundary; a larger one is what callbacks make of it, unless the
program has changed it."""

ALIGNED = 64


class JoinDonor:
    """One member's donations. Called from its training thread."""

    def __init__(
        self,
        context: MemberContext,
        state: CommittedState,
        laying: ExchangeLayout,
        trained: TrainedParameters,
        brief: Callable[[], JoinBriefing],
    ) -> None:
        """`brief` makes a briefing behind a commit."""
        self._context = context
        self._state = state
        self._laying = laying
        self._trained = trained
        self._brief = brief
        self._donations: list[JoinerDonation] = []
        self._weights: list[Parameter] = []
        self._marks: list[tuple[int, int]] = []

    def committed(self, *, leaves: bool) -> None:
        """Begin with new joiners and copy the state for those ready for it: all that is applied is committed.

        Args:
            leaves: this generation is over, so no joiner begins.
        """
        if not leaves:
            self.answer()
            for donation in self._donations:
                if donation.waits:
                    donation.copy(
                        *take_apart(self._state.briefed()),
                        places(self._context.held.weights, self._optimizers),
                    )
        # Behind the update: what changes these up to the next step's sums is the program, unseen by joiners.
        if any(donation.follows for donation in self._donations):
            self._marks = marks(self._weights, self._optimizers)

    def answer(self) -> None:
        """Begin with new joiners, behind a commit in a generation that goes on."""
        for transport in self._context.coordinator.joiners():
            self._begin(transport)
        self._donations = [donation for donation in self._donations if not donation.over]

    def reduced(
        self,
        report: StepReport,
        rows: int,
        buffers: Tensor | None,
        *,
        update: PhaseUpdate,
        skipped: bool,
    ) -> None:
        """Copy the sums of a step for joiners that follow: complete in the parameters' gradients, and not yet applied.

        Args:
            rows: of the batch; where the slices' weights add up to something else the sums have to be scaled.
            skipped: the gradients have overflowed, so no weight will change.
            buffers: the encoded buffers in the reduced word; None where the first shard was absent.
        """
        # The update comes next, and the sending thread may still be copying what it changes.
        for donation in self._donations:
            donation.await_copy()
        following = self._following()
        if not following:
            return
        reached = [used and not skipped for used in report.used]
        grads = [p.grad for p, used in zip(self._context.parameters, reached, strict=True) if used]
        head = {
            "kind": STEP,
            "used": reached,
            "skipped": skipped,
            "factor": 1.0 if report.weight == rows else rows / report.weight,
            "settings": self._context.held.settings(),
            # Copies: the program goes on changing these while a thread sends.
            "kept": copy.deepcopy(self._changed(self._context.held.kept.states())),
            "loss": report.loss,
            "only": update.optimizers,
            "phase": None if update.ends else [report.loss, *report.values],
            "buffers": None if buffers is None else buffers.clone(),
        }
        for donation in following:
            donation.add(head, [grad for grad in grads if grad is not None])

    def end_generation(self) -> None:
        """Send the rest of the state to joiners that follow: all members leave the generation at this step."""
        following = self._following()
        if following:
            rest = self._rest()
            for donation in following:
                donation.end(rest)

    def void(self) -> None:
        """Give up all joiners: the generation broke, and what was sent may not be what the others go on from."""
        donations, self._donations = self._donations, []
        for donation in donations:
            donation.void()

    def _following(self) -> list["JoinerDonation"]:
        """The joiners that have had all that this member has: none, once its program changed weights meanwhile."""
        following = [donation for donation in self._donations if donation.follows]
        if not following or self._marks == marks(self._weights, self._optimizers):
            return following
        for donation in following:
            donation.void()
        return []

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [optimizer for optimizer, _ in self._context.held.optimizers]

    def _begin(self, transport: Transport) -> None:
        context, rooms = self._context, None
        if context.spec.followed and not self._laying.tables:  # their gradients are rows
            self._weights = context.held.weights
            rooms = CopyMemory(
                room_for(take_apart(self._state.briefed())[1]), room_for(self._trained.parameters)
            )
        self._donations.append(JoinerDonation(transport, self._brief(), rooms))

    def _rest(self) -> dict[str, Any]:
        held = self._context.held
        kept = held.kept.states()
        # Larger ones follow from what callbacks make of them: only what the program has changed is sent.
        small = {name: state for name, state in kept.items() if _size(*take_apart(state)) <= SMALL_BYTES}
        sent = small | self._changed(kept)
        return {
            "rest": self._state.rest({}),
            "schedulers": [scheduler.state_dict() for scheduler in held.schedulers],
            "settings": held.settings(),
            "kept": sent,
            "prints": prints(held, {name: state for name, state in kept.items() if name not in sent}),
        }

    def _changed(self, kept: dict[str, Any]) -> dict[str, Any]:
        """The states of kept objects that differ from what the last step's callbacks left: the program, which does not
        run in a joiner that follows, has changed them since."""
        left = self._context.held.kept.committed
        return {name: state for name, state in kept.items() if not _same(state, left.get(name))}


@dataclass(frozen=True, slots=True)
class CopyMemory:
    """The bytes of memory for a copy of the state, and for one step's gradients."""

    state_bytes: int
    step_bytes: int


class JoinerDonation:
    """One joiner's donation. `_serve` runs on a thread of its own, everything else on the training thread.

    Attributes:
        follows: the state has been copied for the joiner, so that it needs every step from there on.
        over: the joiner has joined, was only briefed, is gone, or was given up.
    """

    def __init__(self, transport: Transport, brief: JoinBriefing, rooms: CopyMemory | None) -> None:
        """Start the sending thread. `rooms` is None where joiners cannot follow."""
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
        """Whether memory for the copy is ready, and nothing is in it."""
        return self._room is not None and not self.follows

    def copy(self, skeleton: bytes, tensors: Sequence[Tensor], late: Container[int]) -> None:
        """Copy the state that stands now.

        Args:
            late: addresses of the tensors that stay as they are until `await_copy` has returned.
        """
        room, self._room = self._room, None
        assert room is not None
        size = room_for(tensors)
        # The state may have grown since the memory was made: some optimizers make theirs in a first step.
        memory = room[:size] if size <= room.numel() else torch.empty(size, dtype=torch.uint8)
        kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
        places = list(zip(views(memory, kinds), tensors, strict=True))
        copy_all((view, tensor) for view, tensor in places if tensor.data_ptr() not in late)
        self._late = [(view, tensor) for view, tensor in places if tensor.data_ptr() in late]
        self._parts.put(({"kind": STATE, "skeleton": skeleton, "kinds": kinds}, memory))
        self.follows = True

    def await_copy(self) -> None:
        """Wait until the tensors given to `copy` may change; give the joiner up where that takes too long."""
        if self.follows and not self._copied.wait(COPY_DEADLINE_S):
            self.void()

    def add(self, head: dict[str, Any], grads: Sequence[Tensor]) -> None:
        rooms = self._rooms
        assert rooms is not None
        with self._lock:  # `_serve` gives memory back from its own thread
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
        self._parts.put(None)  # wakes `_serve`

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
            self._copied.set()  # the training thread may be waiting for a copy that will not be made
            self._communicator.close()

    def _tell(self, side: SideChannel) -> bool:
        """Brief the joiner on what it does not know. Returns whether it stays: else it has lines to run first."""
        known = unpacked(side.receive_state(JOINER), side.seal)
        told = self._brief.since(known) | {"followed": self._rooms is not None}
        side.send_state(JOINER, packed(told, side.seal))
        # A sum with two ranks: to this one's 0 the joiner adds its answer.
        return bool(side.all_reduce(torch.zeros(1, dtype=torch.float64)))

    def _send(self, side: SideChannel, head: dict[str, Any], memory: Tensor) -> bool:
        """Send one part. Returns whether the joiner joins with it."""
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
                # The part in use may be small, where few parameters had a gradient, and the next step may
                # need all.
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
    """The tensors that `fill` put into the memory, as views into it."""
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
    (skeleton, tensors), (others_skeleton, others) = (
        take_apart(each, types=COMPARED) for each in (one, other)
    )
    # Equal skeletons have equally many tensors, so `map` leaves none out.
    return skeleton == others_skeleton and all(map(_same_bits, tensors, others))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(bytes_of(one), bytes_of(other))


def _touched(size: int) -> Tensor:
    # The system hands out a zeroed page only once something is written to it.
    return torch.zeros(size, dtype=torch.uint8).fill_(1)


def _whole(memory: Tensor) -> Tensor:
    """The whole memory of which this may be a view."""
    base = memory._base
    return memory if base is None else base
