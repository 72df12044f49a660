"""The handover of parts to servers that are new to their slots, from the servers that hold them."""

from collections.abc import Sequence

import torch
from torch.nn import Parameter

from ringleader.comm.buckets import Buckets
from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.elastic import Plan
from ringleader.elastic.parts import gifts
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.generation.generation import Generation
from ringleader.train.state.state_transfer import StateTransfer


def lacks(plan: Plan, rank: int, donor: str, *, updated: bool) -> bool:
    """Whether the donor, whose whole state this member took, lacks the newest of any part that this one updates.

    Args:
        updated: the donor has updated its part in this attempt.
    """
    if not plan.backups or rank < plan.world or not updated:
        return False
    me, other = rank - plan.world, plan.rank_of(donor) - plan.world
    return any(me in servers and other not in servers for servers in plan.held_by)


def hand_over(
    generation: Generation, transfer: StateTransfer, sections: ProgramSections, *, lacking: bool
) -> None:
    """Send parts to the servers that lack them. All members call it together, once all servers that have their parts
    are at the same step.

    Args:
        lacking: this server lacks its parts.

    Raises:
        ExchangeBroken: the parts received by then stay.
    """
    exchange = generation.exchange
    plan, me = generation.plan, generation.server
    said = torch.zeros(len(plan.members), dtype=torch.float64)
    said[generation.rank] = lacking
    without = {rank - plan.world for rank in exchange.all_reduce(said).nonzero().flatten().tolist()}
    # All go through the same list in the same order, so each send meets its receive.
    for receiver, donor, parts in gifts(plan.held_by, without):
        if donor == me:
            given = parameters_of(exchange.buckets, parts)
            state = transfer.state_of(given) | {"boundaries": sections.states()}
            exchange.send_state(plan.world + receiver, packed(state, exchange.seal))
        elif receiver == me:
            given = parameters_of(exchange.buckets, parts)
            received = unpacked_of_any_type(exchange.receive_state(plan.world + donor), exchange.seal)
            transfer.take_part(received, given)
            sections.add_states(received["boundaries"])
            # Nobody knows which rows of these the workers lack: all of them are published once.
            exchange.buckets.tables.all_changed(given)


def parameters_of(buckets: Buckets, parts: Sequence[int]) -> list[Parameter]:
    """The parameters of these parts, in the order of the exchange."""
    owned = zip(buckets.parameters, buckets.owners, strict=True)
    return [parameter for parameter, owner in owned if owner in parts]
