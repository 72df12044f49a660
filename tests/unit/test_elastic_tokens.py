"""Over any history of hops, losses and joins every span gets every item exactly once, and the lists never lie."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.elastic.plan import owned
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.regeneration import RegeneratedToken, TokenCopy, regenerate, todo

SHARDS, STEPS = 4, 3
END = SHARDS * STEPS


@dataclass
class Copied:
    """One member's copy of a token: what its list says, and what its weights truly hold."""

    version: int = 0
    listed: set[int] = field(default_factory=set)
    held: Counter[int] = field(default_factory=Counter)
    owed: Counter[int] = field(default_factory=Counter)

    def told(self) -> TokenCopy:
        assert self.held == Counter(dict.fromkeys(self.listed, 1)), "a list lies"
        return TokenCopy(self.version, ItemSet(0, self.listed), frozenset(self.owed))


class Ring:
    """Members with their copies; token k is on its way to member `at[k]`, as the copy of whoever had it last."""

    def __init__(self, members: int, spans: int) -> None:
        self.spans = spans
        self.members = [[Copied() for _ in range(spans)] for _ in range(members)]
        self.form()

    def form(self) -> None:
        """A generation begins."""
        self.regenerated: list[RegeneratedToken] = []
        for k in range(self.spans):
            token = regenerate([copies[k].told() for copies in self.members])
            self.regenerated.append(token)
            source = self.members[token.source][k]
            assert all(copies[k].listed <= source.listed for copies in self.members), "a copy was given up"
            for copies in self.members:
                self.receive(copies[k], source)
        world = len(self.members)
        self.work = [
            list(todo(self.regenerated, owned(r, world, SHARDS), SHARDS, STEPS)) for r in range(world)
        ]
        self.at = [k % world for k in range(self.spans)]

    def receive(self, copy: Copied, source: Copied) -> None:
        copy.version, copy.listed, copy.held = source.version, set(source.listed), source.held.copy()

    def compute(self, member: int) -> None:
        if self.work[member]:
            offset, shard, spans = self.work[member].pop(0)
            for k in spans:
                self.members[member][k].owed[offset * SHARDS + shard] += 1

    def hop(self, span: int, *, lost: bool = False) -> None:
        """The holder adds what it owes and passes on; with `lost` it dies before the other has the token."""
        holder = self.at[span]
        mine = self.members[holder][span]
        mine.held += mine.owed
        mine.listed |= set(mine.owed)
        mine.version += len(mine.owed)
        mine.owed.clear()
        if not lost:
            self.at[span] = (holder + 1) % len(self.members)
            self.receive(self.members[self.at[span]][span], mine)

    def lose(self, member: int) -> None:
        if len(self.members) > 1:
            del self.members[member]
            self.form()

    def join(self) -> None:
        if len(self.members) < SHARDS:
            self.members.append([Copied(version=-1) for _ in range(self.spans)])
            self.form()

    def act(self, kind: str, number: int) -> None:
        member, span = number % len(self.members), number % self.spans
        match kind:
            case "compute":
                self.compute(member)
            case "hop":
                self.hop(span)
            case "die":
                self.lose(member)
            case "die holding":
                holder = self.at[span]
                self.hop(span, lost=True)
                self.lose(holder)
            case "join":
                self.join()

    def end(self) -> None:
        for member, work in enumerate(self.work):
            while work:
                self.compute(member)
        for _ in range(2 * len(self.members)):
            for span in range(self.spans):
                self.hop(span)


KINDS = st.sampled_from(["compute", "compute", "compute", "hop", "hop", "hop", "die", "die holding", "join"])


@settings(max_examples=400, deadline=None)
@given(
    members=st.integers(1, SHARDS),
    spans=st.integers(1, 3),
    script=st.lists(st.tuples(KINDS, st.integers(0, 11)), max_size=60),
)
def test_every_span_gets_every_item_once(members: int, spans: int, script: list[tuple[str, int]]) -> None:
    ring = Ring(members, spans)
    for kind, number in script:
        ring.act(kind, number)
    ring.end()
    for copies in ring.members:
        for copy in copies:
            assert copy.held == Counter(range(END))
            assert copy.told().items.floor == END
            assert not copy.owed


def test_an_item_that_some_spans_lack_is_computed_for_those_alone() -> None:
    """Item 1 was added to tokens 0 and 2 when its worker was lost; item 0 is still owed by the survivor."""
    items = [ItemSet(0, [1]), ItemSet(), ItemSet(0, [1])]
    survivor = [TokenCopy(len(known), known, frozenset({0})) for known in items]
    regenerated = [regenerate([copy]) for copy in survivor]
    assert next(todo(regenerated, range(2), 2, 1)) == (0, 1, (1,))


def test_a_member_that_was_healed_is_nobodys_source() -> None:
    healed, holder = TokenCopy(-1, ItemSet(), frozenset()), TokenCopy(0, ItemSet(), frozenset())
    assert regenerate([healed, holder]).source == 1


def test_an_item_that_would_count_twice_is_named() -> None:
    with pytest.raises(ValueError, match="item 0"):
        regenerate([TokenCopy(1, ItemSet(1), frozenset({0}))])
