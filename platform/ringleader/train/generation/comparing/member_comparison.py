"""The comparison of members: whether all hold the same committed state, found out before a difference does harm.

Every member's fingerprint travels with the word of the first transaction of a generation and of a session call, and is
summed before a checkpoint. Where fingerprints differ that transaction does not happen: the right state is that of most
members among those that ran all lines for the first time; the others take it over and report what differed. A second
fingerprint, of the program's variables, travels beside it: where it differs the variable is named, and nothing changes.
In its place, in some later transactions, is that of what first forwards set.
"""

import hashlib
from contextlib import nullcontext

import torch
from torch import Tensor

from ringleader.checkpoint.pieces import take_apart
from ringleader.train.between_calls.sections import ProgramSections
from ringleader.train.between_calls.variables import ProgramVariables
from ringleader.train.body.turn_state.first_forward import FirstForwardState
from ringleader.train.generation.committed_state import CommittedState
from ringleader.train.generation.comparing.ended_calls import EndedCalls
from ringleader.train.generation.comparing.fingerprint_vote import (
    EXACT_BYTES,
    differ,
    differing,
    number_of,
    right_of,
)
from ringleader.train.generation.comparing.replicated_states import ReplicatedStates
from ringleader.train.generation.context import MemberContext
from ringleader.train.state.fingerprints import first_difference, prints
from ringleader.train.state.hidden_state import looked_at

IN_A_ROW = 3
"""Comparisons in a row with a difference, after which it is the program that makes members differ."""

WHY = (
    "the program changed it differently on this worker: based on its own slices, a clock, a file or a generator; "
    "branch on session.loss, session.evaluate and global_step only"
)
LATE = (
    "members differed while they computed steps (event member.differed): what runs with a step (an on_commit callback, "
    "a hook of an optimizer, the function of a schedule) goes by state of its own, which no step commits: go by "
    "session.global_step, or keep it with session.keep(name, object)"
)


class MemberComparison:
    """One member's part in the comparison. Called from its training thread."""

    def __init__(
        self,
        context: MemberContext,
        state: CommittedState,
        sections: ProgramSections,
        variables: ProgramVariables,
        first: FirstForwardState,
    ) -> None:
        self._context = context
        self._state = state
        self._sections = sections
        self._program_variables = variables
        self._first = first
        # The generation, its transactions so far, and after how many of them first forwards' values were named last.
        self._agreed, self._named_first = (-1, 0), (-1, 0)
        self._replicated = ReplicatedStates(context, sections)
        self._ended = EndedCalls(context, sections)
        self._leased = context.rules.leased
        self._on = context.same_bits
        self._compared = (-1, -1)
        self._call = self._differed = self._named = -1
        self._due = self._due_first = False
        self._said = (0, 0)
        self._several = False
        self._mine: dict[str, bytes] = {}
        self._in_a_row = 0
        self._unsure = self._late = False

    @property
    def why_other_bits(self) -> str:
        """The reason that the members' state depends on who computed what; empty where they hold the same."""
        if self._in_a_row >= IN_A_ROW:
            return f"members differed at {IN_A_ROW} session calls in a row (event member.differed): {WHY}"
        unsure = "members differed, and it is not known which of them is right (event member.differed)"
        if self._late:
            return LATE
        return f"{unsure}: {WHY}" if self._unsure else ""

    def state(self) -> tuple[int, int, bool, bool, bool]:
        return self._differed, self._in_a_row, self._on, self._unsure, self._late

    def restore(self, state: tuple[int, int, bool, bool, *tuple[bool, ...]]) -> None:
        """Take over what a peer has counted, so that both compare at the same calls; what it knows itself stays."""
        unsure = self._unsure
        # Those of earlier checkpoints do not say the last one.
        self._differed, self._in_a_row, self._on, self._unsure, *late = state
        self._unsure |= unsure
        self._late |= any(late)

    def begin(self, call: int) -> None:
        """Take the state's fingerprint, where one is due, as a transaction of a session call begins."""
        generation = self._context.generation
        self._call = call
        self._due = self._on and self._compared != (generation.number, call)
        self._said = (0, 0)
        # All count the same transactions of a generation: a broken one begins the next.
        agreed = self._agreed[1] if self._agreed[0] == generation.number else 0
        self._due_first = self._context.same_bits and not self._due and looked_at(agreed)
        if self._due_first and self._named_first != self._agreed and not self._context.serves:
            self._said = (0, self._first.fingerprint())
        if self._due:
            # A server's may be others: it reads no row, and may have no GPU. What it makes of them is in the state.
            silent = call == self._named or self._context.serves
            variables = 0 if silent else self._program_variables.fingerprint(call)
            self._said = (self._fingerprint(), variables)

    @property
    def said(self) -> tuple[int, int]:
        """The fingerprints that go with the transaction's word, of the state and of the variables; 0 for none."""
        return self._said

    def differs(self, reduced: Tensor) -> bool:
        """Whether members give different fingerprints in a reduced word. Where none are due, as in nearly every step,
        the word is not read for them."""
        states = self._due and differ(self._told(reduced))
        variables = self._variables(reduced) if self._due or self._due_first else []
        self._several = sum(map(bool, variables)) > 1
        # The fingerprints of variables have no bit for lines that ran again: every difference counts.
        return states or differ(variables, but=0)

    def agreed(self, call: int) -> None:
        """Record that the transaction has happened, so that its call has been compared in this generation."""
        generation = self._context.generation
        last, count = self._agreed
        self._agreed = (generation.number, count + 1 if last == generation.number else 1)
        if self._due and self._several and self._said[1]:
            self._program_variables.files.compared(())
        if self._due:  # also on a server that is a step ahead and said nothing: all go by the same calls
            self._compared, self._due, self._said = (generation.number, call), False, (0, 0)
            if call != self._differed:
                self._in_a_row = 0

    def correct(self, reduced: Tensor) -> None:
        """Give members that differ by a reduced word the state of the others, and tell all which of the program's
        variables differ. Raises ExchangeBroken."""
        variables = self._variables(reduced)
        ranks = [rank for rank, value in enumerate(variables) if value]
        if self._due_first:
            self._first.name_differing(ranks)
            self._named_first = self._agreed
            return
        if differ(variables, but=0):
            self._program_variables.name_differing(ranks)
            self._named = self._call
        told = self._told(reduced)
        if differ(told):
            self._correct(told)

    def before_saving(self) -> None:
        """Compare members at the boundary that all are about to copy for a checkpoint. Raises ExchangeBroken."""
        context = self._context
        if not self._on or self._leased:
            return  # where items are leased members were compared as the loop began, and no lines have run since
        said = torch.zeros(len(context.generation.plan.members), dtype=torch.float64)
        said[context.generation.rank] = self._fingerprint()
        told = [int(value) for value in context.generation.exchange.all_reduce(said).tolist()]
        if differ(told):
            self._correct(told)

    def _told(self, reduced: Tensor) -> list[int]:
        plan = self._context.generation.plan
        told = self._context.layout.fingerprints(reduced, world=len(plan.members))
        # Leased items are applied here and there: nothing is comparable once a server has made a step of the loop.
        begun = self._leased and not all(told[plan.world :])
        return [0] * len(told) if begun else told

    def _variables(self, reduced: Tensor) -> list[int]:
        generation = self._context.generation
        return self._context.layout.variables(reduced, world=len(generation.plan.members))

    def _correct(self, told: list[int]) -> None:
        context = self._context
        call = context.progress.calls.next - 1
        # Also in an earlier generation: whoever came since then was given the state of the others.
        self._late |= self._ended.differed(call, within=self._compared[1] == call)
        right, certain = right_of(told)
        self._unsure |= not certain
        donor, me = told.index(right), context.generation.rank
        payload = None
        for receiver in differing(told, right):
            if me == donor:
                # Packed once for all: it copies the whole state.
                if payload is None:
                    payload = self._state.payload(since=0)
                context.generation.exchange.send_state(receiver, payload)
            elif me == receiver:
                self._take(context.generation.exchange.receive_state(donor))
        self._count()

    def _take(self, payload: Tensor) -> None:
        context = self._context
        # What a server has of optimizers' states may be nowhere else; of weights it has published its part.
        with context.transfer.keeping_states() if context.serves else nullcontext():
            self._state.receive(payload)
        self._say(first_difference(self._mine, self._prints()) or "a part of the state")

    def make_states_alike(self) -> None:
        """Compare what a fingerprint of the whole state leaves out, on servers that stand in for each other. All
        call it at the first transaction of a loop that they agree on. Raises ExchangeBroken."""
        if not self._due:
            return
        what, certain = self._replicated.make_alike()
        self._unsure |= not certain
        if what:
            self._say(what)

    def _say(self, what: str) -> None:
        generation = self._context.generation
        data = {"worker": generation.plan.members[generation.rank], "what": what, "why": WHY}
        self._context.reporter.say("member.differed", generation.number, data)

    def _count(self) -> None:
        if self._call == self._differed:  # what differs cannot be made alike: it is not compared here again
            self._compared, self._unsure = (self._context.generation.number, self._call), True
        self._in_a_row += self._call != self._differed
        self._differed = self._call
        self._on = self._in_a_row < IN_A_ROW

    def _fingerprint(self) -> int:
        """This member's fingerprint; 0 where its state rightly differs: on a server that is a step ahead, and inside a
        loop of leased items."""
        if self._context.ahead or (self._leased and self._context.progress.calls.offset):
            return 0
        digest, self._mine = hashlib.blake2b(digest_size=EXACT_BYTES), self._prints()
        for name, value in sorted(self._mine.items()):
            digest.update(name.encode() + value)
        return number_of(digest.digest(), again=self._sections.ran_again)

    def _prints(self) -> dict[str, bytes]:
        """Fingerprints of all that is equal on all members: with servers, not of optimizers' states."""
        context = self._context
        held = context.held
        kept = held.kept.states()
        found = prints(held, kept, optimizers=not context.rules.has_servers)
        small = {"settings": held.settings(), "schedules": [s.state_dict() for s in held.schedulers]}
        for name, values in small.items():
            for number, value in enumerate(values):
                skeleton, tensors = take_apart(value)
                digest = hashlib.blake2b(skeleton, digest_size=EXACT_BYTES)
                for tensor in tensors:
                    digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
                found[f"{name} {number}"] = digest.digest()
        return found
