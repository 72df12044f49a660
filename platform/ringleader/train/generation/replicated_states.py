"""Optimisers' states that several servers hold, of parts with a backup or on copies.

They are compared, and made alike, before one server stands in for another.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import Parameter

from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.train.generation.fingerprint_vote import EXACT_BYTES, differ, differing, number_of, right_of
from ringleader.train.generation.server_handover import parameters_of
from ringleader.train.state.fingerprints import first_difference, state_prints

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


def make_alike(member: "Member") -> tuple[str, bool]:
    """Give servers whose states differ those of the others that hold the part. All members call it together.

    Returns:
        What this server has taken over, empty for nothing; and whether it is certain which servers were right.

    Raises:
        ExchangeBroken: states received by then stay.
    """
    generation, plan = member.generation, member.generation.plan
    if not (parts := _parts(member)):
        return "", True
    said = torch.zeros(len(parts), plan.servers, dtype=torch.float64)
    if generation.serves and not member.ahead and not member.progress.lacks_part:
        for number, (holders, parameters) in enumerate(parts):
            if generation.server in holders:
                said[number, generation.server] = _fingerprint(member, parameters)
    told = [
        [int(value) for value in row] for row in generation.exchange.all_reduce(said.view(-1)).view_as(said)
    ]
    taken, certain = "", True
    # All go through the same list in the same order, so each send meets its receive.
    for (_, parameters), values in zip(parts, told, strict=True):
        if differ(values):
            right, known = right_of(values)
            certain &= known
            for receiver in differing(values, right):
                taken = _pass_on(member, values.index(right), receiver, parameters) or taken
    return taken, certain


def _parts(member: "Member") -> list[tuple[Sequence[int], list[Parameter]]]:
    """What several servers hold: those servers, and the parameters. The same list on all members."""
    plan = member.generation.plan
    if member.spec.sync.servers_are_copies:
        return [(range(plan.servers), member.held.parameters)] if plan.servers > 1 else []
    if not plan.backups:
        return []
    buckets = member.generation.exchange.buckets
    held_by = enumerate(plan.held_by)
    return [(servers, parameters_of(buckets, [part])) for part, servers in held_by if len(servers) > 1]


def _fingerprint(member: "Member", parameters: Sequence[Parameter]) -> int:
    digest = hashlib.blake2b(digest_size=EXACT_BYTES)
    for name, value in sorted(state_prints(member.held, parameters).items()):
        digest.update(name.encode() + value)
    return number_of(digest.digest(), again=member.sections.ran_again)


def _pass_on(member: "Member", donor: int, receiver: int, parameters: Sequence[Parameter]) -> str:
    """Send the states of these parameters from one server to another; returns what the receiver has taken over."""
    generation, held = member.generation, member.held
    if generation.server == donor:
        state = held.state_of(parameters)["optimizers"]
        generation.exchange.send_state(
            generation.plan.world + receiver, packed(state, generation.exchange.seal)
        )
    if generation.server != receiver:
        return ""
    payload = generation.exchange.receive_state(generation.plan.world + donor)
    before = state_prints(held, parameters)
    held.take_states(unpacked_of_any_type(payload, generation.exchange.seal), parameters)
    return first_difference(before, state_prints(held, parameters))
