"""One member's contribution to a step: its slices' gradients, added up along the tree as far as it can alone."""

from collections.abc import Callable, Mapping, Sequence

from torch.nn import Parameter

from ringleader.comm.buckets import Bucket, Buckets
from ringleader.comm.rows import SparseTables
from ringleader.comm.schedules import RankPart
from ringleader.comm.tree import Tree, TreeNode, tree_over
from ringleader.elastic import Plan


class LocalSums:
    """The slices of a step on one member: every bucket is handed out, in the fixed order, once its partial sums are
    final.

    If the job is not reproducible, a worker's rows come as one merged slice and the tree stands over ranks, so `total`
    is the world and rank r owns "shard" r.

    Args:
        submit_rows: called once a step, behind all buckets: the sums of the tables are final.
        groups: the ranks of each node, as the transport knows them.

    Attributes:
        most_rows: the most partial sums that a member brings of one bucket: those of a step in which all shards have
            rows; fewer shards never make more.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        buckets: Buckets,
        *,
        same_bits: bool,
        submit: Callable[[Bucket], None],
        submit_rows: Callable[[], None],
        groups: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self.buckets = buckets
        self.total = plan.shards if same_bits else plan.world
        owned = [plan.shards_of(r) if same_bits else range(r, r + 1) for r in range(plan.world)]
        # Servers stand behind the workers: they own no shard, and take part in every sum.
        self._owned = [*owned, *(range(0) for _ in range(plan.servers))]
        self._rank = rank
        self._groups = groups
        self._submit = submit
        self._submit_rows = submit_rows
        # With all shards present until a step says otherwise: `most_rows` is that of such a step.
        self._tree: Tree = tree_over(self.total, frozenset(range(self.total)))
        # One at least: row 0 takes the result also where a member brings nothing.
        self.most_rows = max(1, *map(len, self.nodes))
        # By present shards and bucket: batches of one shape make these once.
        self._parts: dict[tuple[frozenset[int], int], RankPart] = {}
        self._stack: list[TreeNode] = []
        self._last_shard = -1
        self._last = False
        self._ready: set[int] = set()
        self._next = 0
        self._stepped: set[int] | None = None

    def begin_step(self, present: frozenset[int], stepped: Sequence[Parameter] | None = None) -> None:
        self._stepped = None if stepped is None else {id(parameter) for parameter in stepped}
        self._tree = tree_over(self.total, present)
        self._stack, self._ready, self._next = [], set(), 0
        mine = [shard for shard in self._owned[self._rank] if shard in present]
        self._last_shard = mine[-1] if mine else -1
        self.buckets.begin_step()
        if not mine:
            # No backward will complete them: this member takes part in every sum without a row of its own.
            for bucket in self.buckets.buckets:
                self._send(bucket)
            self._submit_rows()

    def begin_slice(self, shard: int) -> None:
        row = len(self._stack)
        self._stack, adds = self._tree.push(self._stack, TreeNode(0, shard))
        self._last = shard == self._last_shard
        self.buckets.begin_slice(row, adds, self._final if self._last else _partial)

    def end_slice(self) -> None:
        self.buckets.end_slice()
        if self._last:
            self._submit_rows()

    @property
    def tree(self) -> Tree:
        """The order of addition in the running step."""
        return self._tree

    @property
    def nodes(self) -> tuple[tuple[TreeNode, ...], ...]:
        """For each rank, the nodes of the tree whose sums it brings in the running step."""
        return tuple(self._tree.partials(owned) for owned in self._owned)

    def part(self, bucket: Bucket) -> RankPart:
        """This rank's part in the sum of `bucket` in the running step."""
        key = (self._tree.present, bucket.number)
        if key not in self._parts:
            self._parts[key] = RankPart(
                self._rank, bucket.length, self.nodes, self._tree, groups=self._groups
            )
        return self._parts[key]

    def _final(self, bucket: Bucket) -> None:
        """Submit buckets in their order, the same on all members."""
        self._ready.add(bucket.number)
        # One that is complete early waits for those before it.
        while self._next in self._ready:
            self._send(self.buckets.buckets[self._next])
            self._next += 1

    def _send(self, bucket: Bucket) -> None:
        """Submit a bucket, but for one of which no parameter is stepped."""
        members = (id(self.buckets.parameters[number]) for number in bucket.members)
        # Left out on all members alike: its sum would be of nothing.
        if self._stepped is None or not self._stepped.isdisjoint(members):
            self._submit(bucket)


def _partial(_: Bucket) -> None:
    """Do nothing: more slices of this member follow."""


def reusable(
    buckets: Buckets | None,
    parameters: Sequence[Parameter],
    owners: Sequence[int],
    tables: Mapping[int, str],
    *,
    shared: bool,
    active: Sequence[int] | None = None,
) -> Buckets:
    """The buckets of the generation before if they fit and nothing can still write into them, else fresh ones.

    Args:
        owners: the server of each parameter.
        tables: the names of the parameters whose gradients are rows, by number.
        shared: whether the members sum in shared memory, so that the rows have to be there.
        active: the numbers of the parameters whose gradients travel; None: of those that are trainable.
    """
    fresh = SparseTables(parameters, tables)
    if buckets is not None:
        # Also where the buckets are replaced: which rows are still to be published does not depend on them.
        fresh.go_on(buckets.tables)
        same = (active is None or buckets.active == tuple(active)) and buckets.tables.names == fresh.names
        if same and not buckets.tainted and _fits(buckets, parameters, owners, shared=shared):
            return buckets
        # The fresh ones know nothing of the memory that the program holds: it must show the weights again.
        buckets.weights.bring_back()
        # Before others hook the parameters: each gradient would be taken by both.
        buckets.release()
    return Buckets(parameters, shared=shared, owners=owners, tables=fresh, active=active, before=buckets)


def _fits(buckets: Buckets, wanted: Sequence[Parameter], owners: Sequence[int], *, shared: bool) -> bool:
    known = buckets.parameters
    same = len(known) == len(wanted) and all(a is b for a, b in zip(known, wanted, strict=True))
    same = same and buckets.owners == tuple(owners)
    return same and (buckets.arena is not None or not shared)
