"""Flat gradient buckets in backward order, filled by hooks: the gradients' memory between backward and update.

A bucket has rows. Each row is one partial sum of the canonical tree, flat over the bucket's parameters; slices arrive
in ascending shard order and the two top rows are added as soon as they are siblings. A parameter of `alone_bytes` or
more has a bucket to itself, whose row simply is the tensor that autograd hands over: no copy. The small ones share
buckets of up to `capacity_bytes` and are copied in once.

If the members share memory, each row has a home in an arena that the others can map. A row that autograd handed over
moves home with its exchange, and the result lies there.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from ringleader.comm.rows import SparseTables
from ringleader.comm.segments import Arena
from ringleader.comm.shared_weights import SharedWeights, holders
from ringleader.errors import StepMisuse

CAPACITY_BYTES = 25 << 20
ALONE_BYTES = 1 << 20


@dataclass(slots=True)
class Bucket:
    """Some parameters' gradients in one flat span.

    Attributes:
        number: its position in the order in which buckets are exchanged.
        members: parameter numbers in the order of their spans.
        starts: the first element of each member; `length` at the end.
        owner: the index of the server that completes and updates it; 0 without servers, or with one.
        rows: (length,) tensors; row 0 holds the result after the exchange.
        arena: the shared memory in which rows get their homes; None where no memory is shared.
        homes: (length,) tensors in the arena.
        missing: the number of members that the running backward has not reached yet.
    """

    number: int
    members: tuple[int, ...]
    starts: tuple[int, ...]
    like: Tensor
    owner: int = 0
    arena: Arena | None = None
    rows: list[Tensor] = field(default_factory=list)
    homes: list[Tensor] = field(default_factory=list)
    missing: int = 0

    @property
    def length(self) -> int:
        return self.starts[-1]

    @property
    def alone(self) -> bool:
        return len(self.members) == 1

    def empty(self) -> None:
        """Wait for a gradient of every member: a backward begins."""
        self.missing = len(self.members)

    def filled(self) -> bool:
        """Count one more member as there; whether it was the last."""
        self.missing -= 1
        return self.missing == 0

    def row(self, number: int) -> Tensor:
        """Row `number`, (length,); allocated on first use."""
        while len(self.rows) <= number:
            place = len(self.rows)
            self.rows.append(self.like.new_empty(self.length) if self.arena is None else self.home(place))
        return self.rows[number]

    def home(self, number: int) -> Tensor:
        """The (length,) home of row `number` in shared memory."""
        assert self.arena is not None, "rows have homes only where memory is shared"
        while len(self.homes) <= number:
            self.homes.append(self.arena.empty(self.length, self.like.dtype))
        return self.homes[number]

    def move_home(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """Replace the first `count` rows by their homes; returns (old row, home) of each, for the caller to copy."""
        moves = [(self.row(k), self.home(k)) for k in range(count)]
        self.rows[:count] = [home for _, home in moves]
        return moves


class Buckets:
    """The buckets of one list of parameters. One exchange at a time attaches to them.

    Args:
        active: the numbers of the parameters whose gradients travel; None: of those that are trainable. Others have
            no bucket.
        before: the buckets that these replace, in whose arena parameters may live.

    Attributes:
        active: those numbers.
        used: per parameter, whether a backward since `begin_step` reached it.
        tainted: whether a transfer may still write into the rows, so that nobody may use them again.
        arena: the shared memory in which rows live; None where no memory is shared.
        weights: the parameters that live there, too.
        owners: the server of each parameter.
        tables: parameters whose gradients are rows; they have no bucket.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        *,
        capacity_bytes: int = CAPACITY_BYTES,
        alone_bytes: int = ALONE_BYTES,
        shared: bool = False,
        owners: Sequence[int] | None = None,
        tables: SparseTables | None = None,
        active: Sequence[int] | None = None,
        before: "Buckets | None" = None,
    ) -> None:
        self.parameters = list(parameters)
        trainable = (number for number, p in enumerate(self.parameters) if p.requires_grad)
        self.active = tuple(trainable if active is None else active)
        self.owners = tuple(owners or [0] * len(self.parameters))
        self.arena = Arena() if shared else None
        self.tables = tables or SparseTables(self.parameters, {})
        dense = [number for number in self.active if number not in self.tables.names]
        groups = _groups(self.parameters, dense, self.owners, capacity_bytes, alone_bytes)
        self.buckets = [
            _bucket(number, group, self.parameters, self.owners[group[0]], self.arena)
            for number, group in enumerate(groups)
        ]
        self.used = [False] * len(self.parameters)
        self.tainted = False
        self.weights: SharedWeights = SharedWeights(before.weights.here() if before is not None else set())
        self._home = {p: (bucket, k) for bucket in self.buckets for k, p in enumerate(bucket.members)}
        self._reached = [False] * len(self.parameters)
        self._views: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        self._row = 0
        self._adds = 0
        self._complete: Callable[[Bucket], None] = _ignore
        self._open = False
        self._waiting: dict[int, list[tuple[int, Tensor]]] = {}
        self._hooks: list[RemovableHandle] = []
        self._unhooked = [*self._home, *self.tables.names]
        self._attach()

    def begin_step(self) -> None:
        if self._unhooked:
            self._attach()
        self.used = [False] * len(self.parameters)
        self._open = False
        self.tables.begin_step()

    def begin_slice(self, row: int, adds: int, complete: Callable[[Bucket], None]) -> None:
        """Direct the next backward's gradient into row `row`, then merge the two top rows `adds` times.

        Args:
            complete: called with each bucket as soon as the backward has filled it and the adds are done.
        """
        self._row, self._adds, self._complete, self._open = row, adds, complete, True
        self._reached = [False] * len(self.parameters)
        self._waiting = {}
        for bucket in self.buckets:
            bucket.empty()
        self.tables.begin_slice(row, adds)
        # Where a `.grad` is left, autograd adds to it instead of handing over a tensor.
        drop_gradients(self.parameters)

    def end_slice(self) -> None:
        """Close the slice: parameters that the backward did not reach count as zero."""
        # Unfrozen by the program since the last `_attach`: no hook has fired for these.
        for number in self._unhooked:
            if self.parameters[number].grad is not None:
                self._arrived(number, self.parameters[number])
        for bucket in self.buckets:
            for k, number in enumerate(bucket.members):
                if not self._reached[number]:
                    self._place(bucket, k, None)
        self.tables.end_slice()
        self._open = False

    def expose(self, owners: Collection[int] | None = None) -> None:
        """Set every parameter's `.grad` to its part of row 0; to None if its bucket's owner is not in `owners`."""
        for number, (bucket, k) in self._home.items():
            mine = owners is None or bucket.owner in owners
            parameter = self.parameters[number]
            give_gradient(parameter, self.view(bucket, k, 0) if mine else None)

    def view(self, bucket: Bucket, member: int, row: int) -> Tensor:
        """The member's part of a row, in the parameter's shape."""
        if bucket.alone:  # its row may be another tensor in every step
            return bucket.row(row).view(self.parameters[bucket.members[0]].shape)
        return self._kept_views(bucket, row)[member]

    def _kept_views(self, bucket: Bucket, row: int) -> list[Tensor]:
        """The members' parts of a row that they share."""
        flat, place = bucket.row(row), (bucket.number, row)
        # Kept, as making views anew costs 45 µs each.
        known = self._views.get(place)
        if known is None or known[0] is not flat:
            known = self._views[place] = flat, self.views(bucket, flat)
        return known[1]

    def views(self, bucket: Bucket, flat: Tensor) -> list[Tensor]:
        """The members' parts of a (length,) tensor, each in its parameter's shape."""
        spans = zip(bucket.starts, bucket.starts[1:], bucket.members, strict=False)
        return [flat[start:stop].view(self.parameters[n].shape) for start, stop, n in spans]

    def load_parameters(self, bucket: Bucket) -> None:
        """Copy the parameters' values into row 0."""
        with torch.no_grad():
            for k, number in enumerate(bucket.members):
                self.view(bucket, k, 0).copy_(self.parameters[number])

    def store_parameters(self, buckets: Sequence[Bucket]) -> None:
        """Copy row 0 of these buckets into the parameters."""
        with torch.no_grad():
            for bucket in buckets:
                for k, number in enumerate(bucket.members):
                    self.parameters[number].copy_(self.view(bucket, k, 0))

    def settle(self, bucket: Bucket) -> Tensor:
        """Move the bucket's parameters into the arena and return that (length,) memory."""
        if bucket.number not in self.weights.buckets:
            assert self.arena is not None, "parameters settle only where memory is shared"
            memory = self.arena.empty(bucket.length, bucket.like.dtype)
            views = zip(bucket.members, self.views(bucket, memory), strict=True)
            self.weights.add(bucket.number, memory, [(n, self.parameters[n], view) for n, view in views])
        return self.weights.settle(bucket.number)

    def taint(self) -> None:
        """Let nobody use the rows again: a transfer may still write into them."""
        self.tainted = True

    def forget_gradients(self) -> None:
        drop_gradients(self.parameters)

    def release(self) -> None:
        """Take the hooks off the parameters; idempotent. A backward then fills `.grad` as usual."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._unhooked = [], []

    def _attach(self) -> None:
        """Hook every parameter that can be hooked."""
        # torch refuses hooks on frozen ones, which the program may unfreeze later.
        frozen = [number for number in self._unhooked if not self.parameters[number].requires_grad]
        self._hooks += [self._hook(number) for number in self._unhooked if number not in frozen]
        self._unhooked = frozen

    def _hook(self, number: int) -> RemovableHandle:
        def place(parameter: Tensor) -> None:
            # Outside a slice a backward is the program's own: its gradients stay in `.grad`.
            if self._open:
                self._arrived(number, parameter)

        handle: RemovableHandle = self.parameters[number].register_post_accumulate_grad_hook(place)  # type: ignore[no-untyped-call]
        return handle

    def _arrived(self, number: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        if self._reached[number]:
            self._open = False
            raise StepMisuse(
                f"parameter {number} of shape {tuple(parameter.shape)} received two gradients in one slice.",
                hint="Call session.step once with the sum of all losses; checkpoint with use_reentrant=False.",
            )
        assert gradient is not None, "the hook runs after the gradient was made"
        # Dropped now and not at the next slice: what is copied below frees its memory within the backward.
        parameter.grad = None
        self.used[number] = self._reached[number] = True
        if number in self.tables.names:
            self.tables.take(number, gradient)
            return
        if gradient.is_sparse:
            raise StepMisuse(
                f"parameter {number} of shape {tuple(parameter.shape)} received a sparse gradient.",
                hint="Use nn.Embedding or nn.EmbeddingBag with sparse=True instead of the function, with sync: ring or "
                "parameter_server; or use sparse=False.",
            )
        bucket, k = self._home[number]
        self._place(bucket, k, gradient)

    def _place(self, bucket: Bucket, member: int, gradient: Tensor | None) -> None:
        """Put a gradient (None: zeros) into its row."""
        self._reached[bucket.members[member]] = True
        if gradient is not None and gradient.is_cuda and not bucket.alone:
            # A kernel for each small one would take longer than its backward.
            self._waiting.setdefault(bucket.number, []).append((member, gradient))
        # The first add is done on the way: one pass over memory less.
        elif self._adds:
            # Zeros are added too: -0.0 + 0.0 is 0.0, whoever owns the slice.
            self.view(bucket, member, self._row - 1).add_(0.0 if gradient is None else gradient)
        elif gradient is None:
            self.view(bucket, member, self._row).zero_()
        elif bucket.alone and _can_be_a_row(gradient, bucket.like.dtype):
            _adopt(bucket, self._row, gradient)
        else:
            self.view(bucket, member, self._row).copy_(gradient)
        if bucket.filled():
            self._place_waiting(bucket)
            # The first of the adds was made in `_place`; what is left merges the rows below it.
            for top in range(self._row - 1, self._row - self._adds, -1):
                bucket.row(top - 1).add_(bucket.row(top))
            self._complete(bucket)

    def _place_waiting(self, bucket: Bucket) -> None:
        """Put the gradients on a device that wait for the bucket's last one into their row, by a few kernels."""
        waiting = self._waiting.pop(bucket.number, [])
        if waiting:
            kept = self._kept_views(bucket, self._row - 1 if self._adds else self._row)
            views, gradients = [kept[member] for member, _ in waiting], [gradient for _, gradient in waiting]
            with torch.no_grad():
                if self._adds:
                    torch._foreach_add_(views, gradients)
                else:
                    torch._foreach_copy_(views, gradients)


def laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient, or an entry of an optimizer's state, in its parameter's memory layout, as autograd and optimizers
    create it."""
    # Fused optimizers walk memory alone: another layout would pair elements that do not belong together.
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype, requires_grad=False).copy_(gradient)


def give_gradient(parameter: Parameter, gradient: Tensor | None) -> None:
    """Make this the parameter's `.grad`, in its memory layout; None: it has none."""
    parameter.grad = None if gradient is None else laid_out_as(parameter, gradient)


def drop_gradients(parameters: Iterable[Parameter]) -> None:
    """Set every `.grad` to None."""
    for parameter in parameters:
        parameter.grad = None


def part_gradients(parameters: Iterable[Parameter]) -> None:
    """Copy gradients whose memory autograd shares between parameters, so that changing one leaves the other alone."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse and holders(gradient) > 1:
            parameter.grad = gradient.clone()


def _ignore(_: Bucket) -> None:
    """Do nothing: no slice is open."""


def _can_be_a_row(gradient: Tensor, dtype: torch.dtype) -> bool:
    """Whether sums may be made in the gradient's memory."""
    # Not where autograd shares it with another parameter, as for both `a` and `b` of `a.view(-1) + b.view(-1)`.
    return gradient.is_contiguous() and gradient.dtype == dtype and holders(gradient) == 1


def _adopt(bucket: Bucket, row: int, gradient: Tensor) -> None:
    """Make the gradient tensor itself the row, without a copy."""
    if row:
        # `insert` below would put the tensor at a lower place if a row before it were missing.
        bucket.row(row - 1)
    del bucket.rows[row : row + 1]
    bucket.rows.insert(row, gradient.view(-1))


def _groups(
    parameters: Sequence[Parameter],
    dense: Sequence[int],
    owners: Sequence[int],
    capacity_bytes: int,
    alone_bytes: int,
) -> list[list[int]]:
    """Group each owner's parameters in `dense`, last first, and order the groups by the one that is ready last."""
    groups: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device, int], list[int]] = {}
    # As a backward reaches them: the last parameters' gradients come first and fill a bucket together.
    for number in reversed(dense):
        parameter = parameters[number]
        if parameter.nbytes >= alone_bytes:
            groups.append([number])
            continue
        # A bucket is one flat tensor with one owner: it takes parameters of one kind only.
        kind = (parameter.dtype, parameter.device, owners[number])
        group = filling.get(kind)
        if group is None or sum(parameters[n].nbytes for n in group) + parameter.nbytes > capacity_bytes:
            group = filling[kind] = []
            groups.append(group)
        group.append(number)
    # group[-1] has the lowest number, so its gradient comes last in the backward and completes the bucket.
    groups.sort(key=lambda group: -group[-1])
    return groups


def _bucket(
    order: int, group: list[int], parameters: Sequence[Parameter], owner: int, arena: Arena | None
) -> Bucket:
    starts = [0]
    for number in group:
        starts.append(starts[-1] + parameters[number].numel())
    # Empty: it stands for type and device, and must not keep a parameter's memory.
    like = parameters[group[0]].detach().new_empty(0)
    return Bucket(order, tuple(group), tuple(starts), like, owner, arena)
