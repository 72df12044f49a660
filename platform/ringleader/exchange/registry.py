"""The registry of exchanges: from the words of the job file to the exchange that a session uses, and to the server of
each parameter."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch.nn import Parameter

from ringleader.comm.buckets import Buckets
from ringleader.comm.schedules import SCHEDULES
from ringleader.comm.schedules.direct import DIRECT
from ringleader.comm.schedules.schedule import always
from ringleader.comm.timeline import NO_TIMELINE, Timeline
from ringleader.comm.transports import Transport
from ringleader.elastic import Plan
from ringleader.exchange.chosen import AUTO, NATIVE
from ringleader.exchange.coded_sums import Coding
from ringleader.exchange.exchange import Exchange
from ringleader.exchange.local_sums import reusable
from ringleader.exchange.parameter_server import ParameterServer
from ringleader.exchange.ring import Ring
from ringleader.exchange.routes import (
    MakeRoutes,
    between_copies,
    nodes_of,
    through_aggregators,
    through_rings,
)

NO_TABLES: Mapping[int, str] = {}


@dataclass(frozen=True, slots=True)
class ExchangeOpening:
    """Everything an architecture needs to open its exchange of one generation.

    Attributes:
        same_bits: one slice per logical shard in canonical order. False: a worker's rows come as one merged slice,
            and `present` and `begin_slice` speak of ranks instead of shards.
        transport: None for a world of one.
        coding: the codec and residuals; the same object in every generation of a worker, which keeps what it owes.
        timeline: records what is exchanged and when.
    """

    algorithm: str
    same_bits: bool
    plan: Plan
    rank: int
    transport: Transport | None
    parameters: Sequence[Parameter]
    word_length: int
    buckets: Buckets
    coding: Coding | None
    timeline: Timeline


def open_exchange(
    *,
    architecture: str,
    algorithm: str,
    same_bits: bool,
    plan: Plan,
    rank: int,
    transport: Transport | None,
    parameters: list[Parameter],
    word_length: int,
    buckets: Buckets | None,
    coding: Coding | None = None,
    tables: Mapping[int, str] = NO_TABLES,
    timeline: Timeline = NO_TIMELINE,
    leased: bool = False,
    active: Sequence[int] | None = None,
    later: Collection[int] = (),
) -> Exchange:
    """Open one generation's exchange; what is not named here is said at `ExchangeOpening`.

    Args:
        architecture: as `Sync.architecture` names it, one of `ARCHITECTURES`.
        algorithm: a registered schedule, `native`, or `auto`; where there are servers it is not used.
        buckets: `.buckets` of the exchange of the generation before, or None; reused where that is safe.
        tables: the names of the parameters whose gradients come as rows, by number; the same in every generation.
        leased: workers push and pull in their own time, so what all of them do together goes in messages.
        active: the numbers of the parameters whose gradients travel until it is laid anew; None: of the trainable ones.
        later: the numbers of those that are not trained at first; the same in every generation.
    """
    refuse_coding(coding, architecture, algorithm, same_bits=same_bits)
    # Only `auto` and servers sum in place: a schedule by name, a codec and leased items need messages.
    messages = (not plan.servers and algorithm != AUTO) or coding is not None or leased
    in_place = not messages and transport is not None and transport.shared
    owners = share_out(parameters, _shares(architecture, plan), later)
    algorithm = admit(algorithm, same_bits=same_bits)
    buckets = reusable(buckets, parameters, owners, tables, shared=in_place, active=active)
    opening = ExchangeOpening(
        algorithm, same_bits, plan, rank, transport, parameters, word_length, buckets, coding, timeline
    )
    return ARCHITECTURES[architecture](opening)


def admit(algorithm: str, *, same_bits: bool) -> str:
    """The algorithm itself, once it is found to be allowed.

    Raises:
        ValueError: it does not exist, or its bits depend on the world although they may not.
    """
    if algorithm not in {AUTO, NATIVE, *SCHEDULES}:
        raise ValueError(
            f"unknown algorithm {algorithm!r}; allowed: {AUTO}, {NATIVE}, {', '.join(SCHEDULES)}"
        )
    if (
        same_bits
        and algorithm != AUTO
        and (algorithm == NATIVE or SCHEDULES[algorithm].canonical is not always)
    ):
        raise ValueError(
            f"{algorithm} does not add in canonical order for every number of workers; use direct, or reproducible: "
            f"false"
        )
    return algorithm


def refuse_coding(coding: Coding | None, architecture: str, algorithm: str, *, same_bits: bool) -> None:
    """Raise ValueError where gradients cannot be coded; the job file is refused with the reasons before."""
    if coding is None:
        return
    if architecture != "ring" or algorithm not in {AUTO, DIRECT.name} or same_bits:
        raise ValueError(f"codec {coding.codec} needs sync: ring, algorithm: direct and reproducible: false")


def share_out(parameters: Sequence[Parameter], servers: int, later: Collection[int] = ()) -> tuple[int, ...]:
    """The server of each parameter, counted among the servers; all 0 where there is none or one.

    Args:
        later: the numbers of parameters that are not trained at first, maybe never: shared out among themselves, so
            that the others are even.
    """
    owners = [0] * len(parameters)
    for numbers in ([n for n in range(len(parameters)) if n not in later], later):
        loads = [0] * max(1, servers)
        # The number breaks ties: all members have to come to the same answer.
        # Whole parameters, so that every optimizer that treats them one by one makes the bits it makes in one process:
        # the largest first, each to the server that has the fewest bytes so far.
        for number in sorted(numbers, key=lambda n: (-parameters[n].nbytes, n)):
            least = loads.index(min(loads))
            owners[number] = least
            loads[least] += parameters[number].nbytes
    return tuple(owners)


def _ring(opening: ExchangeOpening) -> Exchange:
    return Ring(
        plan=opening.plan,
        rank=opening.rank,
        algorithm=opening.algorithm,
        same_bits=opening.same_bits,
        transport=opening.transport,
        buckets=opening.buckets,
        coding=opening.coding,
        timeline=opening.timeline,
    )


def _with_servers(make_routes: MakeRoutes, opening: ExchangeOpening) -> Exchange:
    plan, copies = opening.plan, make_routes is between_copies
    left = not (plan.servers if copies else all(plan.held_by))
    if left or len(plan.members) == 1:
        # Servers have left behind the last barrier, or no worker is left: only words are still to come.
        return _ring(opening)
    if opening.transport is None:
        raise ValueError("a parameter server needs a transport to its workers, and this member has none")
    return ParameterServer(
        plan=opening.plan,
        rank=opening.rank,
        same_bits=opening.same_bits,
        transport=opening.transport,
        buckets=opening.buckets,
        timeline=opening.timeline,
        routes=make_routes(opening.plan, nodes_of(opening.transport), opening.same_bits),
    )


def _shares(architecture: str, plan: Plan) -> int:
    """The number of parts into which the parameters are divided."""
    # By parts and not by servers that are there: a lost one must not change which part a parameter is in.
    return 1 if architecture in COPYING else plan.parts or plan.servers


ARCHITECTURES: dict[str, Callable[[ExchangeOpening], Exchange]] = {
    "ring": _ring,
    "local_sgd": _ring,
    "token_ring": _ring,
    "token_ring/ring": _ring,
    "token_ring/parameter_server": _ring,
    "parameter_server/token_ring": _ring,
    "parameter_server": partial(_with_servers, through_aggregators),
    "parameter_server/ring": partial(_with_servers, through_rings),
    "ring/parameter_server": partial(_with_servers, between_copies),
}
"""By name: the one word for between and inside nodes, or both as `inter_node/intra_node`. The outer sum of `local_sgd`
is a ring's, and the tokens of `token_ring` use the links of a ring without parameters."""

COPYING = frozenset({"ring/parameter_server"})
"""The architectures in which every server keeps all parameters."""
