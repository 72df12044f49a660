"""The list of benchmarks. A new one is a new file with `CASES` and `run`, and a line here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from ringleader.bench.line import Figure


@dataclass(frozen=True, slots=True)
class Wish:
    """The caller's request: cases, length and seed.

    Attributes:
        cases: which cases to run, in the benchmark's own order; all when empty. The part of a name before a dash
            stands for all its variants: `mlp` for `mlp`, `mlp-L8` and `mlp-free`.
        full: may take longer than ten minutes, with more runs.
        seed: of everything drawn at random, printed with the result.
    """

    cases: tuple[str, ...] = ()
    full: bool = False
    seed: int = 0

    def wants(self, case: str) -> bool:
        # The dash at both ends keeps `mlp` from standing for a case `mlpx`.
        return not self.cases or any(f"{case}-".startswith(f"{asked}-") for asked in self.cases)


class Benchmark(Protocol):
    """A benchmark module."""

    CASES: Sequence[str]
    """The names that `--case` takes."""

    def run(self, wish: Wish) -> Iterator[Figure]:
        """Measure. Raises BrokenPromise when what was measured is not what Ringleader claims."""


BENCHMARKS: dict[str, str] = {
    "api": "ringleader.bench.control_plane.api",
    "allreduce": "ringleader.bench.exchange.allreduce",
    "autoscale": "ringleader.bench.elasticity.autoscale",
    "checkpoint": "ringleader.bench.elasticity.checkpoint",
    "codec": "ringleader.bench.exchange.codec",
    "guard": "ringleader.bench.control_plane.guard",
    "join": "ringleader.bench.elasticity.join",
    "network": "ringleader.bench.exchange.network",
    "overhead": "ringleader.bench.training.overhead",
    "ps": "ringleader.bench.training.ps",
    "recovery": "ringleader.bench.elasticity.recovery",
    "scheduler": "ringleader.bench.control_plane.scheduler",
    "soak": "ringleader.bench.elasticity.soak",
    "step": "ringleader.bench.training.step",
    "submit": "ringleader.bench.elasticity.submit",
    "sync": "ringleader.bench.training.sync",
    "token_ring": "ringleader.bench.training.token_ring",
}
"""Name → module, loaded only when it runs: each brings torch or ray."""


def load(name: str) -> Benchmark:
    """The module of a benchmark. Raises KeyError for a name that is not in BENCHMARKS."""
    return cast(Benchmark, import_module(BENCHMARKS[name]))
