"""Requests of the job file that this generation cannot use in its exchange, or meets in a slower way, as sentences."""

from collections.abc import Iterator, Sequence

from torch.nn import Parameter

from ringleader.comm.transports import Transport
from ringleader.exchange.coded_sums import LEAST_BYTES, is_coded
from ringleader.spec.sync import Sync
from ringleader.train.modes.mode_rules import ModeRules

Unmet = tuple[str, str, str]
"""Its subject, what happens, and what to do."""


def unmet(
    sync: Sync,
    rules: ModeRules,
    parameters: Sequence[Parameter],
    transport: Transport | None,
    *,
    on_devices: bool,
) -> Iterator[Unmet]:
    """Yield every unmet request.

    Args:
        rules: of the job's mode.
        parameters: whose gradients are exchanged in buckets.
        transport: None for a world of one.
        on_devices: whether the workers compute on CUDA devices.
    """
    if sync.codec != "none" and not any(is_coded(parameter, sync.codec) for parameter in parameters):
        yield (
            "codec",
            f"sync.codec is {sync.codec}, but no parameter of this model is compressed: vectors, parameters below "
            f"{LEAST_BYTES >> 10} KB and those that would not get smaller are sent uncompressed.",
            "Leave codec out, or use it with larger layers.",
        )
    if sync.inter_node != sync.intra_node:
        yield from _levels(sync, transport, on_devices=on_devices)
    if on_devices and transport is not None:
        yield from _through_host(sync, rules, transport)


def _levels(sync: Sync, transport: Transport | None, *, on_devices: bool) -> Iterator[Unmet]:
    asked = f"sync is {sync.inter_node} between nodes and {sync.intra_node} inside them"
    if transport is None or transport.shared:
        yield (
            "levels",
            f"{asked}, but all members are on one node.",
            f"Set workers.placement: spread, or sync: {sync.intra_node} if one node is intended.",
        )
    elif on_devices:
        yield (
            "levels",
            f"{asked}, but members with GPUs each count as a node of their own.",
            f"Set sync: {sync.inter_node}, which has the same effect.",
        )


def _through_host(sync: Sync, rules: ModeRules, transport: Transport) -> Iterator[Unmet]:
    """The warning that gradients on devices go from one to the other by way of host memory."""
    reasons = {
        f"with {rules.spoken} gradients and weights": not rules.sums_on_devices,
        "as not every member has its own GPU, gradients": transport.together is None,
        f"with sync.codec: {sync.codec} gradients": sync.codec != "none",
        f"with sync.algorithm: {sync.algorithm} gradients": sync.algorithm not in (None, "auto", "native"),
    }
    why = next((why for why, holds in reasons.items() if holds), None)
    if why is not None:
        yield (
            "host_memory",
            f"{why} pass through host memory instead of going from GPU to GPU.",
            "They stay on the GPUs with sync: ring, algorithm auto, no codec and one GPU per worker.",
        )
