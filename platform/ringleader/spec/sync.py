"""The `sync:` part of the job file: its keys, with those refused that do not go together."""

from typing import Self

from pydantic import model_validator

from ringleader.spec.part import Impossible
from ringleader.spec.sync_keys import CANONICAL, CODED, LEVELS, MIXED, SERVERS, TOKENS, SyncKeys


class Sync(SyncKeys):
    """The modes that keep the workers' models in step, between nodes and inside them, with their options."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        _levels_possible(self)
        if not self.server_count and self.servers is not None:
            raise _refusal(
                self,
                "servers",
                f"servers is not used by {self.architecture}; allowed: leave it out, or parameter_server",
            )
        if (self.server_count or self.circulates) and self.algorithm is not None:
            raise _refusal(
                self, "algorithm", f"algorithm is not used by {self.architecture}; allowed: leave it out"
            )
        _tokens_possible(self)
        _backups_possible(self)
        _consistency_possible(self)
        if self.architecture == "local_sgd":
            _rounds_possible(self)
        elif self.inner_steps is not None or self.outer is not None:
            key = "outer" if self.inner_steps is None else "inner_steps"
            raise _refusal(
                self, key, f"{key} is not used by {self.architecture}; allowed: leave it out, or local_sgd"
            )
        if self.reproducible and (self.algorithm or "auto") not in CANONICAL:
            raise _refusal(
                self,
                "reproducible",
                f"reproducible: true and algorithm: {self.algorithm} exclude each other: its sums depend on the "
                f"number of workers; allowed: algorithm {', '.join(sorted(CANONICAL))}, or reproducible: false",
            )
        _refuse_codec(self)
        return self

    def without_servers(self) -> Self:
        """The sync of one process. Servers are other processes: here the same sums run as a ring of one, with the same
        bits. Nothing is stale and no worker is slower than another then, but with `async` every item is still an update
        of its own."""
        if not self.server_count:
            return self
        alone = TOKENS if self.circulates else "ring"
        return self.model_copy(
            update={
                "intra_node": alone,
                "inter_node": alone,
                "servers": None,
                "staleness": self.staleness if self.circulates else None,
                "backup_workers": None,
                "consistency": "async" if self.consistency == "async" else None,
            }
        )


def _refusal(sync: SyncKeys, key: str, message: str) -> Impossible:
    return Impossible(key, getattr(sync, key), message)


def _levels_possible(sync: SyncKeys) -> None:
    """Refuse a mode between nodes that does not go with the one inside them."""
    inter, intra = sync.inter_node, sync.intra_node
    if (inter, intra) == ("ring", TOKENS):
        raise _refusal(
            sync,
            "intra_node",
            "inter_node: ring and intra_node: token_ring cannot be combined: the ring makes nodes wait for each "
            "other after every batch, and a token ring has no common end of a batch; allowed: inter_node "
            "parameter_server or token_ring with intra_node token_ring",
        )
    if inter != intra and not {inter, intra} <= MIXED and (inter, intra) not in LEVELS:
        levels = ", ".join(f"{between}/{inside}" for between, inside in sorted(LEVELS))
        raise _refusal(
            sync,
            _odd_level(sync),
            f"inter_node ({inter}) and intra_node ({intra}) cannot be combined; allowed: the same for both, "
            f"inter_node/intra_node of {levels}, or one of {', '.join(sorted(MIXED))} for each",
        )


def _odd_level(sync: SyncKeys) -> str:
    """The key to change where two levels do not go together: the level that goes with no other, else the one that
    the job file names."""
    if "local_sgd" in (sync.inter_node, sync.intra_node):
        return "inter_node" if sync.inter_node == "local_sgd" else "intra_node"
    return "inter_node" if "intra_node" not in sync.model_fields_set else "intra_node"


def _consistency_possible(sync: SyncKeys) -> None:
    """Refuse keys on when a server updates that do not go together, or that cannot keep the bits as asked."""
    # A token ring gives staleness a meaning of its own, see `token_staleness`.
    if _update_keys(sync) == ["staleness"] and sync.circulates:
        return
    _update_keys_used(sync)
    _update_keys_agree(sync)
    _update_order_possible(sync)


def _update_keys(sync: SyncKeys) -> list[str]:
    """The keys on when a server updates that the job file gives."""
    keys = ("consistency", "staleness", "backup_workers")
    return [key for key in keys if getattr(sync, key) is not None]


def _update_keys_used(sync: SyncKeys) -> None:
    """Refuse keys on when a server updates where the architecture has none or others beside them."""
    given = _update_keys(sync)
    if given and sync.architecture != "parameter_server":
        ring = _ring_beside_servers(sync)
        whose = (
            f", where {ring} is ring{'' if ring in sync.model_fields_set else ' by default'}" if ring else ""
        )
        servers = f"{ring}: parameter_server" if ring else "parameter_server"
        raise _refusal(
            sync,
            given[0],
            f"{given[0]} is not used by {sync.architecture}{whose}; allowed: leave it out, or {servers}"
            + (", or token_ring" if given[0] == "staleness" else ""),
        )


def _update_keys_agree(sync: SyncKeys) -> None:
    """Refuse staleness and backup workers beside a consistency or servers that do not use them."""
    kind = sync.consistency or "sync"
    if sync.staleness is not None and kind != "ssp":
        raise _refusal(
            sync,
            "staleness",
            f"staleness ({sync.staleness}) is not used by consistency: {kind}: it limits how old the weights are "
            f"that ssp computes on; allowed: leave it out, or consistency: ssp",
        )
    if sync.backup_workers and kind != "sync":
        raise _refusal(
            sync,
            "backup_workers",
            f"backup_workers ({sync.backup_workers}) is not used by consistency: {kind}, whose updates do not "
            f"wait for stragglers anyway; allowed: leave it out, or consistency: sync",
        )
    if sync.backup_workers and sync.in_parts:
        raise _refusal(
            sync,
            "backup_workers",
            f"backup_workers ({sync.backup_workers}) and servers ({sync.servers}) exclude each other: one server "
            f"says which items came first; allowed: servers {1 + (sync.server_backups or 0)}, or backup_workers 0",
        )


def _update_order_possible(sync: SyncKeys) -> None:
    """Refuse `reproducible: true` where weights depend on timing, and false where sums have one order anyway."""
    if sync.reproducible and sync.order_free:
        key = "backup_workers" if sync.backup_workers else "staleness" if sync.staleness else "consistency"
        raise _refusal(
            sync,
            "reproducible",
            f"reproducible: true and {key}: {getattr(sync, key)} exclude each other: which weights a gradient is "
            f"computed on depends on timing; allowed: consistency sync, or ssp with staleness 0, without "
            f"backup_workers, or reproducible: false",
        )
    if sync.reproducible is False and sync.leased_in_step:
        raise _refusal(
            sync,
            "reproducible",
            "reproducible: false is not used by consistency: ssp with staleness 0, whose sums always have the same "
            "order; allowed: leave it out",
        )


def _ring_beside_servers(sync: SyncKeys) -> str:
    """The level that is a ring where the other one has servers; empty where that is not so."""
    if {sync.inter_node, sync.intra_node} != MIXED:
        return ""
    return "inter_node" if sync.inter_node == "ring" else "intra_node"


def _backups_possible(sync: SyncKeys) -> None:
    """Refuse backups where servers are too few, are copies of each other already, or hold tokens' weights."""
    if sync.server_backups is None:
        return
    if sync.servers == sync.server_backups == 1:
        raise _refusal(
            sync,
            "servers",
            "servers: 1 and server_backups: 1 exclude each other: the backup of a server is another server; "
            "allowed: servers 2 or more, or leave servers out for 2",
        )
    if sync.inter_node != SERVERS:
        copies = ", whose servers are copies of each other" if sync.server_count else ""
        raise _refusal(
            sync,
            "server_backups",
            f"server_backups is not used by {sync.architecture}{copies}; allowed: leave it out, or inter_node "
            f"{SERVERS}",
        )
    if sync.server_backups and sync.holds_spans:
        raise _refusal(
            sync,
            "server_backups",
            f"server_backups ({sync.server_backups}) is not used by {sync.architecture}, whose servers hold "
            f"their tokens' weights without copies; allowed: leave it out, or intra_node parameter_server or ring",
        )


def _refuse_codec(sync: SyncKeys) -> None:
    """Refuse a codec where no span's owner adds what others send, or where bits must not depend on the world."""
    if sync.codec == "none":
        return
    if sync.architecture != "ring":
        raise _refusal(
            sync,
            "codec",
            f"codec: {sync.codec} and {sync.architecture} exclude each other: its sums and weights are exact; "
            f"allowed: sync ring with this codec, or codec: none",
        )
    if (sync.algorithm or "auto") not in CODED:
        raise _refusal(
            sync,
            "codec",
            f"codec: {sync.codec} and algorithm: {sync.algorithm} exclude each other: each hop would have to "
            f"decode, add and encode again, and lose precision every time; allowed: algorithm auto or "
            f"direct with this codec, or codec: none",
        )
    if sync.reproducible:
        raise _refusal(
            sync,
            "reproducible",
            f"reproducible: true and codec: {sync.codec} exclude each other: what the codec loses depends on "
            f"the number of workers; allowed: codec none, or reproducible: false",
        )


def _tokens_possible(sync: SyncKeys) -> None:
    if sync.circulates:
        if sync.reproducible:
            raise _refusal(
                sync,
                "reproducible",
                f"reproducible: true and {sync.architecture} exclude each other: workers add to the weights in "
                f"the order in which the tokens reach them; allowed: leave it out, or sync: ring",
            )
        if sync.tokens is not None and sync.holds_spans and sync.tokens < sync.server_count:
            raise _refusal(
                sync,
                "tokens",
                f"tokens ({sync.tokens}) is below servers ({sync.servers}), and each server needs one token or "
                f"more; allowed: at least as many tokens as servers",
            )
    elif sync.tokens is not None:
        raise _refusal(
            sync, "tokens", f"tokens is not used by {sync.architecture}; allowed: leave it out, or token_ring"
        )


def _rounds_possible(sync: SyncKeys) -> None:
    if (sync.algorithm or "auto") not in CANONICAL:
        raise _refusal(
            sync,
            "algorithm",
            f"algorithm ({sync.algorithm}) does not add the replicas in canonical order, as local_sgd does; "
            f"allowed: algorithm {', '.join(sorted(CANONICAL))}",
        )
    if sync.reproducible is False:
        raise _refusal(
            sync,
            "reproducible",
            "reproducible: false is not used by local_sgd, which has one replica per logical shard, whichever "
            "worker trains it; allowed: leave it out",
        )
