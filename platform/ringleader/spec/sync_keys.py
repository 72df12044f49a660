"""The keys of the job file's `sync:`: which modes there are, and what follows from them."""

from typing import Annotated, Literal

from pydantic import Field

from ringleader.spec.part import MAX_WORKERS, SpecPart

Architecture = Literal["ring", "parameter_server", "local_sgd", "token_ring"]
SERVERS: Architecture = "parameter_server"
TOKENS: Architecture = "token_ring"
MIXED: frozenset[Architecture] = frozenset({"ring", SERVERS})
"""Architectures that may be combined: one between nodes, another inside them."""
LEVELS: frozenset[tuple[Architecture, Architecture]] = frozenset(
    {(TOKENS, "ring"), (TOKENS, SERVERS), (SERVERS, TOKENS)}
)
"""(between, inside) with tokens on one level."""
OuterStep = Literal["average", "nesterov"]
Consistency = Literal["sync", "ssp", "async"]
Algorithm = Literal[
    "auto",
    "binary_blocks",
    "direct",
    "double_tree",
    "doubling",
    "gather",
    "halving_doubling",
    "native",
    "ring",
    "tree",
    "two_level",
]
Codec = Literal["none", "bf16", "fp16", "int8", "onebit", "powersgd", "topk"]
CANONICAL: frozenset[str] = frozenset({"auto", "direct", "gather"})
"""Algorithms whose bits never depend on the world."""
CODED: frozenset[str] = frozenset({"auto", "direct"})
"""Algorithms under which the owner of a span adds what others send, so that it may be coded."""
SCALED_CODECS: frozenset[Codec] = frozenset({"none", "bf16"})
"""Codecs that pass on a gradient of any size, and keep no residual that was computed at another loss scale."""
MAX_SERVERS = 64
MAX_TOKENS = 4096
MAX_STALENESS = 64
TOKEN_STALENESS = 2
"""The default of a token ring: with it four workers on digits end where the ring does, without a bound they do not."""
INNER_STEPS = 16
MAX_ROUND_SLICES = 1 << 18


class SyncKeys(SpecPart):
    """The keys of `sync:`, and what follows from them; `Sync` refuses those that do not go together."""

    intra_node: Architecture = "ring"
    inter_node: Architecture = "ring"
    algorithm: Algorithm | None = None
    reproducible: Annotated[bool, Field(strict=True)] | None = None
    codec: Codec = "none"
    servers: Annotated[int, Field(strict=True, ge=1, le=MAX_SERVERS)] | None = None
    server_backups: Annotated[int, Field(strict=True, ge=0, le=1)] | None = None
    consistency: Consistency | None = None
    backup_workers: Annotated[int, Field(strict=True, ge=0, le=MAX_WORKERS)] | None = None
    inner_steps: Annotated[int, Field(strict=True, ge=1, le=MAX_ROUND_SLICES)] | None = None
    outer: OuterStep | None = None
    tokens: Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS)] | None = None
    staleness: Annotated[int, Field(strict=True, ge=0, le=MAX_STALENESS)] | None = None

    @property
    def architecture(self) -> str:
        """The mode of both levels, or `inter_node/intra_node` where they differ."""
        same = self.inter_node == self.intra_node
        return self.inter_node if same else f"{self.inter_node}/{self.intra_node}"

    @property
    def mode(self) -> str:
        """The way of synchronizing, by the name of its folder in `train/modes`."""
        if self.leased:
            return "async_server"
        if self.circulates:
            return "token_ring"
        return "local_sgd" if self.architecture == "local_sgd" else "synchronous"

    @property
    def circulates(self) -> bool:
        """Whether weights travel as tokens, between nodes, inside them, or both."""
        return TOKENS in (self.inter_node, self.intra_node)

    @property
    def holds_spans(self) -> bool:
        """Whether each server holds a part of the weights, which the tokens of the nodes' rings are brought to."""
        return (self.inter_node, self.intra_node) == (SERVERS, TOKENS)

    @property
    def server_count(self) -> int:
        """Parameter servers beside the workers; at least one more than there are backups of a part."""
        if SERVERS not in (self.inter_node, self.intra_node):
            return 0
        return max(self.servers or 1, 1 + (self.server_backups or 0))

    @property
    def in_parts(self) -> bool:
        """Whether there are servers of which none holds everything; backups do not count."""
        return self.server_count > 1 + (self.server_backups or 0)

    @property
    def servers_are_copies(self) -> bool:
        """Whether each server holds all parameters and optimizer state, so that one of them can be replaced."""
        return self.intra_node == SERVERS and self.inter_node != SERVERS

    @property
    def same_bits(self) -> bool:
        """Whether the result may not depend on who computed what (the default where algorithm and codec allow it)."""
        if self.circulates:
            return False
        if self.reproducible is None:
            return (self.algorithm or "auto") in CANONICAL and self.codec == "none" and not self.order_free
        return self.reproducible

    @property
    def why_other_bits(self) -> str:
        """The reason why the result depends on who computed what; empty where it does not."""
        meet = "workers add to the weights in the order in which the tokens reach them"
        late = "which weights an item is computed on depends on timing"
        reasons = {
            f"with sync: {self.architecture} {meet}": self.circulates,
            "sync.consistency is async: every item is an update, applied in order of arrival": (
                self.consistency == "async"
            ),
            f"sync.staleness is {self.staleness}: {late}": self.staleness,
            f"sync.backup_workers is {self.backup_workers}: {late}": self.backup_workers,
            f"sync.codec is {self.codec}: what it loses depends on the number of workers": self.codec
            != "none",
            f"sync.algorithm is {self.algorithm}: the order of its sums depends on the number of workers": (
                (self.algorithm or "auto") not in CANONICAL
            ),
            # Last: it is the reason only where none of the others holds.
            "sync.reproducible is false for this job": True,
        }
        return "" if self.same_bits else next(why for why, holds in reasons.items() if holds)

    @property
    def why_many_scales(self) -> str:
        """The reason why the gradients of one update may have different loss scales; empty where they have one."""
        reasons = {
            f"with {self.architecture} each replica makes its own steps": self.outer_step is not None,
            f"with {self.architecture} no two workers make the same update": self.circulates,
            "here workers compute single items, and those of one update may have different scales": self.leased,
            f"codec: {self.codec} carries residuals over, or clips large values": self.codec
            not in SCALED_CODECS,
        }
        return next((why for why, holds in reasons.items() if holds), "")

    @property
    def token_staleness(self) -> int:
        """The number of rounds that a worker, or a node group, may have in flight when it begins another, where weights
        travel as tokens."""
        return TOKEN_STALENESS if self.staleness is None else self.staleness

    @property
    def leased(self) -> bool:
        """Whether workers lease items from the servers' queue, instead of owning shards of every batch."""
        return self.consistency in ("ssp", "async") or bool(self.backup_workers)

    @property
    def commits_together(self) -> bool:
        """Whether all members commit a batch, or a round, at once: not where items are leased, or weights travel as
        tokens, which are under way while the program's lines run."""
        return not (self.leased or self.circulates)

    @property
    def leased_in_step(self) -> bool:
        """Whether leased items make the updates of synchronous servers: no worker computes on older weights."""
        return self.leased and not self.order_free

    @property
    def order_free(self) -> bool:
        """Whether the weights that a gradient is computed on, or the sum it is in, depend on who comes first."""
        return self.consistency == "async" or bool(self.staleness) or bool(self.backup_workers)

    @property
    def round_steps(self) -> int:
        """Batches of one transaction, H: 1 but for `local_sgd`."""
        return (self.inner_steps or INNER_STEPS) if self.architecture == "local_sgd" else 1

    @property
    def outer_step(self) -> OuterStep | None:
        """The rule that combines the replicas of a round; None where a batch is the transaction."""
        return (self.outer or "average") if self.architecture == "local_sgd" else None
