"""The exchange that a training step needs from a way of synchronizing: slice gradients go in, the next weights come
out."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from ringleader.comm.buckets import Buckets
from ringleader.comm.communicator import Communicator
from ringleader.comm.seal import Seal
from ringleader.comm.simulator import ClusterCosts

Check = Callable[[Tensor], bool]


def accept(_: Tensor) -> bool:
    """Accept any word."""
    return True


class Exchange(Protocol):
    """One generation's exchange among the members of a plan. Called from the training thread only, but for `abort`.

    A step is `begin_step`, then `begin_slice`, backward, `end_slice` for each owned shard that is present, then
    `finish`, the update, `publish`. A member that owns no present shard calls `begin_step`, `finish`, `publish`.
    Every wait ends by a deadline, a broken peer or `abort`, with `ExchangeBroken`.
    """

    updates: bool
    """Whether this member's optimizer makes the next weights: every worker of a ring, only the servers otherwise."""

    @property
    def part(self) -> list[Parameter] | None:
        """The parameters that this member updates, as one server of several; None: all that anybody updates."""

    @property
    def used(self) -> list[bool]:
        """Per parameter: whether any slice of this step gave it a gradient on this member."""

    @property
    def exposed_s(self) -> float:
        """Seconds the training thread was blocked on communication since the exchange was opened."""

    @property
    def communicator(self) -> Communicator | None:
        """The threads and links of this generation; None for a member that is alone."""

    @property
    def buckets(self) -> Buckets:
        """The buckets, for `open_exchange` of the next generation, which reuses their memory where that is safe."""

    def lay(self, buckets: Buckets) -> None:
        """Exchange these buckets from the next step on, in memory of the same kind. All members call this at the same
        point, with the same layout; no step is open."""

    def begin_step(self, present: frozenset[int], stepped: Sequence[Parameter] | None = None) -> None:
        """Open a step. `present` are the shards of the whole batch with rows; absent ones are skipped in the sum.
        `stepped` are the parameters whose gradients are used, the same on all members; None: all. Buckets without any
        of them are not exchanged."""

    def begin_slice(self, shard: int) -> None:
        """Announce the next backward, which computes the gradient of `shard`, from zero. Shards come in ascending
        order."""

    def end_slice(self) -> None:
        """Close the slice after its backward; parameters it did not reach count as zero. After the last present owned
        shard every bucket is on its way (most left during the backward)."""

    def meet(self, word: Tensor) -> Tensor:
        """Sum the members' control words without any gradient: at the head of an evaluation, or as a barrier."""

    def finish(self, word: Tensor, check: Check = accept) -> Tensor:
        """Wait until all buckets and the control word are reduced.

        Args:
            check: gets the summed word as soon as it is there and says whether the sum will be applied; what it raises
                ends the wait for the buckets, which never come from a member that is somewhere else in the program.
            word: (word_length,) float32. Members write disjoint entries and zeros elsewhere, so its sum is exact in
                any order.

        Returns:
            the summed word. Where `updates`, every parameter's `.grad` is then the sum over all present shards in
            the canonical order (or the schedule's order where the job is not reproducible); None outside `part`.
        """

    def complete(self, values: Tensor) -> Tensor:
        """Put together what the updating members say of their parts: a float64 tensor without negative entries, zeros
        elsewhere. All of them call it between `finish` and the update; the values themselves where there is one
        part."""

    def publish(self) -> None:
        """Send the servers' weights to everybody, after the update; a ring has nothing to do."""

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a small float64 tensor whose non-zero entries are disjoint between members. Blocks."""

    @property
    def seal(self) -> Seal:
        """The seal of objects for members of this generation: `comm.objects` makes payloads with it."""

    def send_state(self, rank: int, payload: Tensor) -> None:
        """Send (n,) uint8 to another member."""

    def receive_state(self, rank: int) -> Tensor:
        """Receive what `send_state` sent: (n,) uint8."""

    def measure(self, known: ClusterCosts | None = None) -> ClusterCosts | None:
        """Measure the costs of links and adds, the same for all members, who call this together.

        Args:
            known: the costs that this member knows from before; where all know the same, or nothing is chosen by them,
                they stay.
        """

    def go_by(self, costs: ClusterCosts | None) -> None:
        """Choose algorithms by these costs, which are the same for all members."""

    def chosen(self) -> dict[str, Any] | None:
        """The data of the `exchange.chosen` event, see `chosen.told`; None where nothing is sent, or there is nothing
        to choose."""

    def abort(self) -> None:
        """End every wait of this generation soon; from any thread."""

    def close(self) -> None:
        """Release sockets and threads; idempotent. Parameters keep their values."""
