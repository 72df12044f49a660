"""Optimizers' states that several servers hold, of parts with a backup or on copies.

They are compared, and made alike, before one server stands in for another.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch.nn import Parameter

from ringleader.comm.objects import packed, unpacked_of_any_type
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.generation.comparing.fingerprint_vote import (
    EXACT_BYTES,
    differ,
    differing,
    number_of,
    right_of,
)
from ringleader.train.generation.context import MemberContext
from ringleader.train.generation.server_handover import parameters_of
from ringleader.train.state.fingerprints import first_difference, state_prints


class ReplicatedStates:
    """One member's part in the comparison."""

    def __init__(self, context: MemberContext, sections: ProgramSections) -> None:
        self._context = context
        self._sections = sections

    def make_alike(self) -> tuple[str, bool]:
        """Give servers whose states differ those of the others that hold the part. All members call it together.

        Returns:
            What this server has taken over, empty for nothing; and whether it is certain which servers were right.

        Raises:
            ExchangeBroken: states received by then stay.
        """
        if not (parts := self._parts()):
            return "", True
        context, generation = self._context, self._context.generation
        said = torch.zeros(len(parts), generation.plan.servers, dtype=torch.float64)
        # Who is a step ahead, or has yet to be handed its part, rightly has another state.
        if context.serves and not context.ahead and not context.progress.lacks_part:
            for number, (holders, parameters) in enumerate(parts):
                if generation.server in holders:
                    said[number, generation.server] = self._fingerprint(parameters)
        reduced = generation.exchange.all_reduce(said.view(-1)).view_as(said)
        taken, certain = "", True
        # All go through the same list in the same order, so each send meets its receive.
        for (_, parameters), row in zip(parts, reduced.tolist(), strict=True):
            told = [int(value) for value in row]
            if differ(told):
                right, known = right_of(told)
                certain &= known
                for receiver in differing(told, right):
                    taken = self._pass_on(told.index(right), receiver, parameters) or taken
        return taken, certain

    def _parts(self) -> list[tuple[Sequence[int], list[Parameter]]]:
        """What several servers hold: those servers, and the parameters. The same list on all members."""
        context, plan = self._context, self._context.generation.plan
        if context.rules.servers_are_copies:
            return [(range(plan.servers), context.held.parameters)] if plan.servers > 1 else []
        if not plan.backups:
            return []
        buckets = context.generation.exchange.buckets
        held_by = enumerate(plan.held_by)
        return [(servers, parameters_of(buckets, [part])) for part, servers in held_by if len(servers) > 1]

    def _fingerprint(self, parameters: Sequence[Parameter]) -> int:
        digest = hashlib.blake2b(digest_size=EXACT_BYTES)
        for name, value in sorted(state_prints(self._context.held, parameters).items()):
            digest.update(name.encode() + value)
        return number_of(digest.digest(), again=self._sections.ran_again)

    def _pass_on(self, donor: int, receiver: int, parameters: Sequence[Parameter]) -> str:
        """Send the states of these parameters from one server to another; returns what the receiver has taken over."""
        context, generation = self._context, self._context.generation
        exchange, world = generation.exchange, generation.plan.world
        if generation.server == donor:
            state = context.transfer.state_of(parameters)["optimizers"]
            exchange.send_state(world + receiver, packed(state, exchange.seal))
        if generation.server != receiver:
            return ""
        before = state_prints(context.held, parameters)
        received = unpacked_of_any_type(exchange.receive_state(world + donor), exchange.seal)
        context.transfer.take_states(received, parameters)
        return first_difference(before, state_prints(context.held, parameters))
