"""The `sync:` part of the job file: which modes there are, and which keys go with which."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ringleader.spec.part import MAX_WORKERS, Impossible, SpecPart

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
MAX_SERVERS = 64
MAX_TOKENS = 4096
MAX_STALENESS = 64
TOKEN_STALENESS = 2
"""The default of a token ring: with it four workers on digits end where the ring does, without a bound they do not."""
INNER_STEPS = 16
MAX_ROUND_SLICES = 1 << 18


class Sync(SpecPart):
    """The modes that keep the workers' models in step, between nodes and inside them, with their options."""

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

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self._levels_possible()
        if not self.server_count and self.servers is not None:
            raise self._impossible(
                "servers",
                f"servers is not used by {self.architecture}; allowed: leave it out, or parameter_server",
            )
        if (self.server_count or self.circulates) and self.algorithm is not None:
            raise self._impossible(
                "algorithm", f"algorithm is not used by {self.architecture}; allowed: leave it out"
            )
        self._tokens_possible()
        self._backups_possible()
        self._consistency_possible()
        if self.architecture == "local_sgd":
            self._rounds_possible()
        elif self.inner_steps is not None or self.outer is not None:
            key = "outer" if self.inner_steps is None else "inner_steps"
            raise self._impossible(
                key, f"{key} is not used by {self.architecture}; allowed: leave it out, or local_sgd"
            )
        if self.reproducible and (self.algorithm or "auto") not in CANONICAL:
            raise self._impossible(
                "reproducible",
                f"reproducible: true and algorithm: {self.algorithm} exclude each other: its sums depend on the "
                f"number of workers; allowed: algorithm {', '.join(sorted(CANONICAL))}, or reproducible: false",
            )
        self._refuse_codec()
        return self

    def _impossible(self, key: str, message: str) -> Impossible:
        return Impossible(key, getattr(self, key), message)

    def _levels_possible(self) -> None:
        """Refuse a mode between nodes that does not go with the one inside them."""
        inter, intra = self.inter_node, self.intra_node
        if (inter, intra) == ("ring", TOKENS):
            raise self._impossible(
                "intra_node",
                "inter_node: ring and intra_node: token_ring cannot be combined: the ring makes nodes wait for each "
                "other after every batch, and a token ring has no common end of a batch; allowed: inter_node "
                "parameter_server or token_ring with intra_node token_ring",
            )
        if inter != intra and not {inter, intra} <= MIXED and (inter, intra) not in LEVELS:
            levels = ", ".join(f"{between}/{inside}" for between, inside in sorted(LEVELS))
            raise self._impossible(
                self._odd_level,
                f"inter_node ({inter}) and intra_node ({intra}) cannot be combined; allowed: the same for both, "
                f"inter_node/intra_node of {levels}, or one of {', '.join(sorted(MIXED))} for each",
            )

    @property
    def _odd_level(self) -> str:
        """The key to change where two levels do not go together: the level that goes with no other, else the one that
        the job file names."""
        if "local_sgd" in (self.inter_node, self.intra_node):
            return "inter_node" if self.inter_node == "local_sgd" else "intra_node"
        return "inter_node" if "intra_node" not in self.model_fields_set else "intra_node"

    def _consistency_possible(self) -> None:
        """Refuse keys on when a server updates that do not go together, or that cannot keep the bits as asked."""
        # A token ring gives staleness a meaning of its own, see `token_staleness`.
        if self._update_keys == ["staleness"] and self.circulates:
            return
        self._update_keys_used()
        self._update_keys_agree()
        self._update_order_possible()

    @property
    def _update_keys(self) -> list[str]:
        """The keys on when a server updates that the job file gives."""
        keys = ("consistency", "staleness", "backup_workers")
        return [key for key in keys if getattr(self, key) is not None]

    def _update_keys_used(self) -> None:
        """Refuse keys on when a server updates where the architecture has none or others beside them."""
        given = self._update_keys
        if given and self.architecture != "parameter_server":
            ring = self._ring_beside_servers
            whose = (
                f", where {ring} is ring{'' if ring in self.model_fields_set else ' by default'}"
                if ring
                else ""
            )
            servers = f"{ring}: parameter_server" if ring else "parameter_server"
            raise self._impossible(
                given[0],
                f"{given[0]} is not used by {self.architecture}{whose}; allowed: leave it out, or {servers}"
                + (", or token_ring" if given[0] == "staleness" else ""),
            )

    def _update_keys_agree(self) -> None:
        """Refuse staleness and backup workers beside a consistency or servers that do not use them."""
        kind = self.consistency or "sync"
        if self.staleness is not None and kind != "ssp":
            raise self._impossible(
                "staleness",
                f"staleness ({self.staleness}) is not used by consistency: {kind}: it limits how old the weights are "
                f"that ssp computes on; allowed: leave it out, or consistency: ssp",
            )
        if self.backup_workers and kind != "sync":
            raise self._impossible(
                "backup_workers",
                f"backup_workers ({self.backup_workers}) is not used by consistency: {kind}, whose updates do not "
                f"wait for stragglers anyway; allowed: leave it out, or consistency: sync",
            )
        if self.backup_workers and self.in_parts:
            raise self._impossible(
                "backup_workers",
                f"backup_workers ({self.backup_workers}) and servers ({self.servers}) exclude each other: one server "
                f"says which items came first; allowed: servers {1 + (self.server_backups or 0)}, or backup_workers 0",
            )

    def _update_order_possible(self) -> None:
        """Refuse `reproducible: true` where weights depend on timing, and false where sums have one order anyway."""
        if self.reproducible and self.order_free:
            key = (
                "backup_workers" if self.backup_workers else "staleness" if self.staleness else "consistency"
            )
            raise self._impossible(
                "reproducible",
                f"reproducible: true and {key}: {getattr(self, key)} exclude each other: which weights a gradient is "
                f"computed on depends on timing; allowed: consistency sync, or ssp with staleness 0, without "
                f"backup_workers, or reproducible: false",
            )
        if self.reproducible is False and self.leased_in_step:
            raise self._impossible(
                "reproducible",
                "reproducible: false is not used by consistency: ssp with staleness 0, whose sums always have the same "
                "order; allowed: leave it out",
            )

    @property
    def _ring_beside_servers(self) -> str:
        """The level that is a ring where the other one has servers; empty where that is not so."""
        if {self.inter_node, self.intra_node} != MIXED:
            return ""
        return "inter_node" if self.inter_node == "ring" else "intra_node"

    def _backups_possible(self) -> None:
        """Refuse backups where servers are too few, are copies of each other already, or hold tokens' weights."""
        if self.server_backups is None:
            return
        if self.servers == self.server_backups == 1:
            raise self._impossible(
                "servers",
                "servers: 1 and server_backups: 1 exclude each other: the backup of a server is another server; "
                "allowed: servers 2 or more, or leave servers out for 2",
            )
        if self.inter_node != SERVERS:
            copies = ", whose servers are copies of each other" if self.server_count else ""
            raise self._impossible(
                "server_backups",
                f"server_backups is not used by {self.architecture}{copies}; allowed: leave it out, or inter_node "
                f"{SERVERS}",
            )
        if self.server_backups and self.holds_spans:
            raise self._impossible(
                "server_backups",
                f"server_backups ({self.server_backups}) is not used by {self.architecture}, whose servers hold "
                f"their tokens' weights without copies; allowed: leave it out, or intra_node parameter_server or ring",
            )

    def _refuse_codec(self) -> None:
        """Refuse a codec where no span's owner adds what others send, or where bits must not depend on the world."""
        if self.codec == "none":
            return
        if self.architecture != "ring":
            raise self._impossible(
                "codec",
                f"codec: {self.codec} and {self.architecture} exclude each other: its sums and weights are exact; "
                f"allowed: sync ring with this codec, or codec: none",
            )
        if (self.algorithm or "auto") not in CODED:
            raise self._impossible(
                "codec",
                f"codec: {self.codec} and algorithm: {self.algorithm} exclude each other: each hop would have to "
                f"decode, add and encode again, and lose precision every time; allowed: algorithm auto or "
                f"direct with this codec, or codec: none",
            )
        if self.reproducible:
            raise self._impossible(
                "reproducible",
                f"reproducible: true and codec: {self.codec} exclude each other: what the codec loses depends on "
                f"the number of workers; allowed: codec none, or reproducible: false",
            )

    def _tokens_possible(self) -> None:
        if self.circulates:
            if self.reproducible:
                raise self._impossible(
                    "reproducible",
                    f"reproducible: true and {self.architecture} exclude each other: workers add to the weights in "
                    f"the order in which the tokens reach them; allowed: leave it out, or sync: ring",
                )
            if self.tokens is not None and self.holds_spans and self.tokens < self.server_count:
                raise self._impossible(
                    "tokens",
                    f"tokens ({self.tokens}) is below servers ({self.servers}), and each server needs one token or "
                    f"more; allowed: at least as many tokens as servers",
                )
        elif self.tokens is not None:
            raise self._impossible(
                "tokens", f"tokens is not used by {self.architecture}; allowed: leave it out, or token_ring"
            )

    def _rounds_possible(self) -> None:
        if (self.algorithm or "auto") not in CANONICAL:
            raise self._impossible(
                "algorithm",
                f"algorithm ({self.algorithm}) does not add the replicas in canonical order, as local_sgd does; "
                f"allowed: algorithm {', '.join(sorted(CANONICAL))}",
            )
        if self.reproducible is False:
            raise self._impossible(
                "reproducible",
                "reproducible: false is not used by local_sgd, which has one replica per logical shard, whichever "
                "worker trains it; allowed: leave it out",
            )

    @property
    def architecture(self) -> str:
        """The mode of both levels, or `inter_node/intra_node` where they differ."""
        same = self.inter_node == self.intra_node
        return self.inter_node if same else f"{self.inter_node}/{self.intra_node}"

    @property
    def mode(self) -> str:
        """The way of synchronising, by the name of its folder in `train/modes`."""
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
        """Whether each server holds all parameters and optimiser state, so that one of them can be replaced."""
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
    def token_staleness(self) -> int:
        """The number of rounds that a worker, or a node group, may have in flight when it begins another, where weights
        travel as tokens."""
        return TOKEN_STALENESS if self.staleness is None else self.staleness

    @property
    def leased(self) -> bool:
        """Whether workers lease items from the servers' queue, instead of owning shards of every batch."""
        return self.consistency in ("ssp", "async") or bool(self.backup_workers)

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
