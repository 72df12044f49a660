"""One stretch of a loop at one member of a token ring: the tokens go round until all copies are equal.

The member computes rounds, alone or with its node group: an ordinary step of its own optimizer for the gradients of a
round, whose move is pending for every token that comes by.
"""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from ringleader.comm.buckets import drop_gradients, part_gradients
from ringleader.train.generation.control_word import SliceReport
from ringleader.train.generation.member import Member
from ringleader.train.modes.batch_loop import BatchLoop
from ringleader.train.modes.items import ItemSet
from ringleader.train.modes.token_ring.group_view import GroupView
from ringleader.train.modes.token_ring.node_group import GroupCallKind
from ringleader.train.modes.token_ring.regeneration import ComputeRound, RegeneratedToken, rounds
from ringleader.train.modes.token_ring.settled_steps import encode
from ringleader.train.modes.token_ring.worker_tokens import WorkerTokens
from ringleader.train.ports import check_given_up
from ringleader.train.rows.slices import Prefetched, Slice

POLL_S = 0.02
"""Seconds after which a waiting member looks whether its generation is over."""


class WorkPlan:
    """The items that a member computes in one stretch, alone or with its node group.

    Args:
        group_ranks: the ranks that compute together, this one among them.
        regenerated: what the tokens hold as the stretch begins.
    """

    def __init__(
        self,
        member: Member,
        loop: BatchLoop,
        group_ranks: Sequence[int],
        regenerated: Sequence[RegeneratedToken],
    ) -> None:
        generation = member.generation
        self._member = member
        self._loop = loop
        self._group_ranks = group_ranks
        self._regenerated = regenerated
        self._own = generation.plan.shards_of(generation.rank)
        self._shards = sorted(shard for rank in group_ranks for shard in generation.plan.shards_of(rank))

    def rounds(self) -> Iterator[ComputeRound]:
        """The rounds that this member, or its node group, has to compute; all of a group come to the same."""
        epoch, together = self._loop.epoch, len(self._group_ranks) > 1
        return rounds(self._regenerated, self._shards, epoch.shards, epoch.steps, together=together)

    def mine(self, doing: ComputeRound) -> list[int]:
        """The shards of a round that this member computes."""
        return [shard for shard in doing.shards if shard in self._own]

    def slice(self, offset: int, shard: int) -> Slice:
        return self._loop.slice(self._member, offset, shard)

    def batches(self) -> Prefetched:
        """The batches of all slices of this member, in their order."""
        pieces = (self.slice(doing.offset, shard) for doing in self.rounds() for shard in self.mine(doing))
        return self._loop.batches(pieces)


class Stretch:
    """A stretch, begun with the tokens on their way. Methods raise ExchangeBroken, and then the stretch is over.

    Args:
        regenerated: what the tokens hold.
        heed: takes in what has settled; returns whether a pause is wanted.
        tell: reports the training thread's phase.

    Attributes:
        plan: what this member computes.
        left: the shards of the running round whose slices are still to be computed here.
    """

    def __init__(
        self,
        member: Member,
        loop: BatchLoop,
        tokens: WorkerTokens,
        regenerated: Sequence[RegeneratedToken],
        *,
        heed: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        self._member = member
        self._loop = loop
        self._tokens = tokens
        self._heed = heed
        self._tell = tell
        self._travelling, node_group = tokens.begin_stretch(member.generation.exchange)
        self._group = GroupView(node_group, self._travelling, tokens)
        self.plan = WorkPlan(member, loop, tokens.place.group_ranks, regenerated)
        self.left: list[int] = []
        self._round = ComputeRound(0, (), ())
        self._open = self._finished = False

    @property
    def accumulates(self) -> bool:
        """Whether the parameters have gradients of slices before, to which others will be added."""
        return self._open and bool(self.left)

    def begin(self, compute: ComputeRound) -> bool:
        """Begin a round, as soon as few enough of this member's items are on their way. Returns whether it has begun:
        not where the stretch is to end."""
        begun = self._hear() is GroupCallKind.WORK if self._group.follow else self._may_begin(compute)
        if begun:
            self._round, self.left, self._open = compute, self.plan.mine(compute), True
            # From zero: the slices of a round add up in `.grad`.
            drop_gradients(self._member.parameters)
        return begun

    def take(self, turn: Slice, loss: Tensor, report: SliceReport) -> None:
        """Run the backward of a slice; behind this member's last one of the round the step is due."""
        member, tokens = self._member, self._tokens
        item = self._round.offset * self._loop.epoch.shards + turn.shard
        # Whoever gets a token with this item gets the report with it.
        tokens.news.report(item, encode(report))
        member.draws.begin(*turn.stream)
        member.timeline.begin("backward", slice=turn.shard)
        # The slice's part in the mean gradient of the round.
        share = len(turn.rows) / self._rows
        member.kernels.backward(loss * share)
        part_gradients(member.parameters)
        member.trained.check_reached()
        member.timeline.end()
        if turn.shard == 0:
            tokens.keep_buffers(item)
        self.left.remove(turn.shard)
        if not self.left:
            self.end_round()

    def end_round(self, *, void: bool = False) -> None:
        """End a round of which all slices of this member are computed: add up with the node group, and take one
        step."""
        member, loop, compute = self._member, self._loop, self._round
        void = self._group.add_up(void=void)
        self._open = False
        if void:
            return
        member.timeline.begin("local step", slice=compute.shards[0])
        if not self._group.alone:
            # One step for the slices of several members: all that take it draw by its first slice.
            member.draws.begin(*self.plan.slice(compute.offset, compute.shards[0]).stream)
        if not (self._group.follow and self._tokens.place.serves):
            # Followers of a ring step too, to keep the optimizer's state: one of them may have to conduct. A
            # server steps alone.
            member.held.update()
        member.timeline.end()
        if not self._group.follow:
            items = [compute.offset * loop.epoch.shards + shard for shard in compute.shards]
            share = self._rows / loop.epoch.batch_rows(compute.offset)
            self._tokens.spans.owe(items, share, compute.spans)
        member.held.kept.commit()
        self._travelling.added()
        self._look()

    def halt(self) -> None:
        """Ask that no member begins another round."""
        self._travelling.halt()

    def end(self) -> ItemSet:
        """Wait until all copies are equal, and take them over. Returns the items that they hold."""
        # The others of the group wait for the gradients of a round that was called: void ones end it.
        if self._open:
            self.end_round(void=True)
        while self._group.follow and self._hear() is GroupCallKind.WORK:
            self.end_round(void=True)
        self._travelling.finish()
        self._finished = True
        self._tell("exchange")
        while not self._look():
            self._call(GroupCallKind.WAIT)
            self._travelling.over(POLL_S)
        items = self._tokens.rest(self._member.generation.exchange)
        if self._tokens.place.holds or not self._group.follow:
            self._tokens.freshen()
        self._call(GroupCallKind.CLOSE)
        return items

    @property
    def _rows(self) -> int:
        """The number of rows in the running round."""
        return len(self._loop.epoch.rows_of(self._round.offset, self._round.shards))

    def _may_begin(self, compute: ComputeRound) -> bool:
        """Decide on a round without a conductor, or as one."""
        most = self._member.spec.sync.token_staleness
        while not self._travelling.halted:
            self._look()
            # Bounds how old the weights of a slice are: without it a quick worker computes on its own weights only.
            if self._tokens.spans.num_owed <= most * len(compute.shards):
                break
            self._tell("exchange")
            self._call(GroupCallKind.WAIT)
            with self._member.split.exposed():
                self._tokens.spans.wait(POLL_S)
        if self._travelling.halted:
            return False
        self._tokens.freshen()
        self._call(GroupCallKind.WORK)
        return True

    def _call(self, kind: GroupCallKind) -> None:
        """Send the call of a conductor; others have nobody to call."""
        self._group.call(kind, finished=self._finished)

    def _hear(self) -> GroupCallKind | None:
        """Wait as a follower for work, or the end; None: it has come."""
        while not self._group.closed:
            self._look()
            kind = self._group.hear()
            if kind is not GroupCallKind.WAIT:
                return kind
        return None

    def _look(self) -> bool:
        """Look for news: a break, a plan, a stop, settled steps. Returns whether all copies are equal for good."""
        check_given_up(self._member.coordinator, rank=self._member.generation.rank, phase="forward")
        over = self._travelling.over()
        if self._heed():
            self._travelling.halt()
        return over
