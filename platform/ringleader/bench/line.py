"""One measured figure: the line that `ringleader bench NAME --json` prints."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Target:
    """The bar of a figure: `ratio` (against the peer) or `ringleader` (our own value), with its side."""

    of: Literal["ratio", "ringleader"]
    at: Literal[">=", "<="]
    value: float

    def __str__(self) -> str:
        return f"{self.of} {self.at} {self.value:g}"

    def met(self, *, ratio: float | None, ringleader: float | None) -> bool | None:
        """Whether the bar is reached; None where the value that it applies to was not measured."""
        value = ratio if self.of == "ratio" else ringleader
        if value is None:
            return None
        return value >= self.value if self.at == ">=" else value <= self.value


@dataclass(frozen=True, slots=True)
class Line:
    """One pair of case and peer. Values in SI base units; `ratio` > 1 always means that Ringleader is better."""

    bench: str
    case: str
    ringleader: float | None
    peer: float | None
    peer_name: str | None
    unit: str
    ratio: float | None
    target: str | None
    met: bool | None
    runs: int
    machine: str
    command: str

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure's place in the wide table, whose rows hold several figures of one case each."""

    row: str
    column: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A benchmark's result: every sample of both sides, before anything is divided.

    Attributes:
        ours, peers: one value a run; `ours` is empty where this machine cannot measure it, `peers` is empty and
            `peer_name` None where there is no peer.
        settings: in words, what both sides ran with; shown under the table and on standard error.
        cell: its place in the wide table at the end; None where it is a row of its own.
    """

    case: str
    unit: str
    better: Better
    ours: Sequence[float]
    peers: Sequence[float] = ()
    peer_name: str | None = None
    target: Target | None = None
    settings: str = ""
    cell: Cell | None = None

    def line(self, *, bench: str, machine: str, command: str) -> Line:
        """Medians, their ratio, and whether the target is met."""
        ours = median(self.ours) if self.ours else None
        peer = median(self.peers) if self.peers else None
        ratio = None if peer is None or ours is None else _ratio(ours, peer, self.better)
        return Line(
            bench=bench,
            case=self.case,
            ringleader=None if ours is None else _short(ours),
            peer=None if peer is None else _short(peer),
            peer_name=self.peer_name,
            unit=self.unit,
            ratio=None if ratio is None else _short(ratio),
            target=None if self.target is None else str(self.target),
            met=None if self.target is None else self.target.met(ratio=ratio, ringleader=ours),
            runs=len(self.ours),
            machine=machine,
            command=command,
        )


def _ratio(ours: float, peer: float, better: Better) -> float:
    # Inverted for times: above 1 means that Ringleader is better, whatever the unit.
    return peer / ours if better == "lower" else ours / peer


def _short(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
