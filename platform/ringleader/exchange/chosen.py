"""The schedules that sum the buckets: how they are chosen, and the data of the event `exchange.chosen` about them."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ringleader.comm.buckets import Bucket
from ringleader.comm.choosing.choice import choose
from ringleader.comm.schedules import SCHEDULES, RankPart, Step
from ringleader.comm.simulator import ClusterCosts, LinkCost

AUTO, NATIVE = "auto", "native"
IN_PLACE = "in_place"
"""The name of a sum without a schedule: rows are added where they lie, in memory that all members share."""
ON_DEVICE = "direct, on the device"
UNMEASURED = "direct"
"""The schedule of `auto` before anything is measured: canonical, two hops."""


class ScheduleChoice:
    """The choice of what sums a bucket that is not summed in place: the job file's algorithm, or for `auto` the
    library or our own sum on devices that reach each other, else the schedule that is quickest by the measured costs.

    Args:
        on_devices: whether members sum together on their devices.

    Attributes:
        costs: the measured costs; None before.
    """

    def __init__(self, algorithm: str, *, same_bits: bool, on_devices: bool) -> None:
        self.costs: ClusterCosts | None = None
        self._algorithm = algorithm
        self._same_bits = same_bits
        self._on_devices = on_devices
        self._steps: dict[tuple[frozenset[int], int], tuple[str, tuple[Step, ...]]] = {}

    def go_by(self, costs: ClusterCosts | None) -> None:
        self.costs = costs
        # Steps that are kept belong to schedules chosen by the costs before.
        self._steps.clear()

    def forget(self) -> None:
        """Forget the steps of buckets that are laid anew."""
        self._steps.clear()

    def on_device(self, bucket: Bucket) -> str:
        """The name of what sums the bucket for `auto` on devices that reach each other; empty elsewhere."""
        if not self._on_devices or not bucket.like.is_cuda or self._algorithm != AUTO:
            return ""
        # The library is quicker, but adds in an order that depends on the world.
        return ON_DEVICE if self._same_bits else NATIVE

    def steps(self, part: RankPart, bucket: Bucket) -> tuple[str, tuple[Step, ...]]:
        """The schedule of a bucket and this rank's steps."""
        # Made once for each set of present shards: short batches have trees of their own.
        key = (part.tree.present, bucket.number)
        if key not in self._steps:
            name = self.schedule(part, bucket)
            self._steps[key] = name, tuple(SCHEDULES[name].steps(part))
        return self._steps[key]

    def schedule(self, part: RankPart, bucket: Bucket) -> str:
        if self._algorithm != AUTO:
            return self._algorithm
        if self.costs is None:
            return UNMEASURED
        return choose(part, self.costs, canonical=self._same_bits, element_bytes=bucket.like.element_size())


def told(algorithm: str, chosen: Iterable[tuple[str, int]], costs: ClusterCosts | None) -> dict[str, Any]:
    """The data of the event about an exchange.

    Args:
        algorithm: as in the job file.
        chosen: (schedule, bytes) of every bucket, for a batch in which all shards have rows.
        costs: the costs behind the choice; None where nothing was measured.

    Returns:
        `algorithm`; `ways`, a schedule each with its number of buckets and their least and most bytes, the largest
        first; `costs` in seconds and bytes a second, where there are some.
    """
    sizes: dict[str, list[int]] = defaultdict(list)
    for schedule, nbytes in chosen:
        sizes[schedule].append(nbytes)
    ways = [
        {"schedule": name, "buckets": len(found), "least_bytes": min(found), "most_bytes": max(found)}
        for name, found in sorted(sizes.items(), key=lambda item: (-max(item[1]), item[0]))
    ]
    measured = {} if costs is None else {"costs": _costs(costs)}
    return {"algorithm": algorithm, "ways": ways, **measured}


def _costs(costs: ClusterCosts) -> dict[str, Any]:
    inside = _link(costs.inside)
    # `probe` lets one kind of link stand in for the other where members have only one.
    between = {} if costs.between == costs.inside else {"between_nodes": _link(costs.between)}
    return {"inside": inside, **between, "add_bytes_per_s": _per_s(costs.add_s_per_byte)}


def _link(link: LinkCost) -> dict[str, Any]:
    return {"latency_s": link.latency_s, "bytes_per_s": _per_s(link.s_per_byte)}


def _per_s(s_per_byte: float) -> float | None:
    """Bytes a second; None where bytes took no time that could be measured."""
    return 1 / s_per_byte if s_per_byte > 0 else None
