"""Every way of keeping workers in step that is measured and tested beside the others. A new one is a line here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["ring", "codec", "servers", "hybrid", "tokens", "rounds"]
Word = str | int | bool

INNER_STEPS = 8
SERVERS = 2
STALENESS = 2


@dataclass(frozen=True, slots=True)
class ModeCase:
    """One mode as a job file asks for it.

    Attributes:
        name: the case of a benchmark; the part before a dash stands for all its variants.
        label: what people read.
        family: modes of one family share a colour.
        sync: the `sync:` block, with the hyper-parameters that the mode needs.
        rate: its learning rate, in those of the ring. DiLoCo's outer step (0.7, momentum 0.9) is up to seven times the
            mean of the moves.
    """

    name: str
    label: str
    family: Family
    sync: Mapping[str, Word]
    rate: float = 1.0


def _both(architecture: str, **words: Word) -> dict[str, Word]:
    """The same inside and between nodes."""
    return {"intra_node": architecture, "inter_node": architecture, **words}


MODES: tuple[ModeCase, ...] = (
    ModeCase("ring", "ring", "ring", _both("ring")),
    ModeCase("ring-two-level", "ring, two levels", "ring", _both("ring", algorithm="two_level")),
    ModeCase("ring-bf16", "ring, bf16", "codec", _both("ring", codec="bf16")),
    ModeCase("ring-fp16", "ring, fp16", "codec", _both("ring", codec="fp16")),
    ModeCase("ring-int8", "ring, int8", "codec", _both("ring", codec="int8")),
    ModeCase("ring-onebit", "ring, 1 bit", "codec", _both("ring", codec="onebit")),
    ModeCase("ring-topk", "ring, top-k", "codec", _both("ring", codec="topk")),
    ModeCase("ring-powersgd", "ring, PowerSGD", "codec", _both("ring", codec="powersgd")),
    ModeCase("ps", "servers", "servers", _both("parameter_server", servers=SERVERS, consistency="sync")),
    ModeCase(
        "ps-ssp",
        "servers, stale by 2",
        "servers",
        _both("parameter_server", servers=SERVERS, consistency="ssp", staleness=STALENESS),
    ),
    ModeCase(
        "ps-async",
        "servers, async",
        "servers",
        _both("parameter_server", servers=SERVERS, consistency="async"),
    ),
    ModeCase("ps-backup", "server, 1 backup", "servers", _both("parameter_server", backup_workers=1)),
    ModeCase(
        "hybrid-ps-ring",
        "servers over rings",
        "hybrid",
        {"inter_node": "parameter_server", "intra_node": "ring", "servers": SERVERS},
    ),
    ModeCase(
        "hybrid-ring-ps",
        "ring over servers",
        "hybrid",
        {"inter_node": "ring", "intra_node": "parameter_server", "servers": SERVERS},
    ),
    ModeCase("token-ring", "token ring", "tokens", _both("token_ring")),
    ModeCase(
        "hybrid-tokens-ring",
        "token ring over rings",
        "tokens",
        {"inter_node": "token_ring", "intra_node": "ring"},
    ),
    ModeCase(
        "hybrid-tokens-ps",
        "token ring over servers",
        "tokens",
        {"inter_node": "token_ring", "intra_node": "parameter_server", "servers": SERVERS},
    ),
    ModeCase(
        "hybrid-ps-tokens",
        "server over token rings",
        "tokens",
        {"inter_node": "parameter_server", "intra_node": "token_ring"},
    ),
    ModeCase(
        "local-sgd", "local SGD", "rounds", _both("local_sgd", inner_steps=INNER_STEPS, outer="average")
    ),
    ModeCase(
        "diloco", "DiLoCo", "rounds", _both("local_sgd", inner_steps=INNER_STEPS, outer="nesterov"), rate=0.25
    ),
)
REFERENCE = MODES[0]
"""The mode that the others are compared with."""
