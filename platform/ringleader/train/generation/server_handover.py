"""How servers that are new to their slots get what they shall update: from those that hold it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import Parameter

from ringleader.comm.buckets import Buckets
from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.elastic import Plan
from ringleader.elastic.parts import gifts

if TYPE_CHECKING:
    from ringleader.train.generation.member import Member


def lacks(plan: Plan, rank: int, donor: str, *, updated: bool) -> bool:
    """Whether the donor, whose whole state this member took, has not the newest of all that this one updates.

    Args:
        updated: the donor has updated its part in this attempt.
    """
    if not plan.backups or rank < plan.world or not updated:
        return False
    me, other = rank - plan.world, plan.rank_of(donor) - plan.world
    return any(me in servers and other not in servers for servers in plan.held_by)


def hand_over(group: "Member", *, lacking: bool) -> None:
    """Called by all members together, when all servers that have their parts are at the same step.

    Args:
        lacking: this server has not got its parts.

    Raises:
        ExchangeBroken: the parts that came until then stay.
    """
    seat, exchange, held = group.seat, group.exchange, group.held
    assert seat is not None
    assert exchange is not None
    plan, me = seat.plan, seat.rank - seat.plan.world
    said = torch.zeros(len(plan.members), dtype=torch.float64)
    said[seat.rank] = lacking
    without = {rank - plan.world for rank in exchange.all_reduce(said).nonzero().flatten().tolist()}
    for receiver, donor, parts in gifts(plan.held_by, without):
        if donor == me:
            state = held.state_of(_parameters(exchange.buckets, parts)) | {
                "boundaries": group.sections.states()
            }
            exchange.send_state(plan.world + receiver, packed(state, exchange.seal))
        elif receiver == me:
            given = _parameters(exchange.buckets, parts)
            received = unpacked_of_any_type(exchange.receive_state(plan.world + donor), exchange.seal)
            held.take_part(received, given)
            group.sections.add_states(received["boundaries"])
            exchange.buckets.tables.all_changed(given)


def _parameters(buckets: Buckets, parts: Sequence[int]) -> list[Parameter]:
    owned = zip(buckets.parameters, buckets.owners, strict=True)
    return [parameter for parameter, owner in owned if owner in parts]
