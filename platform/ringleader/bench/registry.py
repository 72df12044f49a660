"""The list of benchmarks. A new one is a new file with `CASES` and `run`, a line in BENCHMARKS and one in SUMMARIES."""

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
    "adapters": "ringleader.bench.training.adapters",
    "api": "ringleader.bench.control_plane.api",
    "allreduce": "ringleader.bench.exchange.allreduce",
    "autoscale": "ringleader.bench.elasticity.autoscale",
    "checkpoint": "ringleader.bench.elasticity.checkpoint",
    "codec": "ringleader.bench.exchange.codec",
    "data": "ringleader.bench.reading.data",
    "guard": "ringleader.bench.control_plane.guard",
    "join": "ringleader.bench.elasticity.join",
    "network": "ringleader.bench.exchange.network",
    "optim": "ringleader.bench.training.optim",
    "overhead": "ringleader.bench.training.overhead",
    "page": "ringleader.bench.page.page",
    "ps": "ringleader.bench.training.ps",
    "recovery": "ringleader.bench.elasticity.recovery",
    "scheduler": "ringleader.bench.control_plane.scheduler",
    "soak": "ringleader.bench.elasticity.soak",
    "step": "ringleader.bench.training.step",
    "submit": "ringleader.bench.elasticity.submit",
    "sweep": "ringleader.bench.control_plane.sweep",
    "sync": "ringleader.bench.training.sync",
    "token_ring": "ringleader.bench.training.token_ring",
}
"""Name → module, loaded only when it runs: each brings torch or ray."""

SUMMARIES: dict[str, str] = {
    "adapters": "a step of other libraries' loops on a session beside a training function, and alone; kills",
    "api": "requests to the control plane under load: submit, list, follow, kill",
    "allreduce": "gradient sums on one node: shared memory and gloo",
    "autoscale": "time to the first step on a cluster that the autoscaler has to grow",
    "checkpoint": "what a 100 MB checkpoint costs training, and torch.save",
    "codec": "training time over 1 Gbit/s links: int8, bf16 and no compression",
    "data": "reading shuffled Parquet and JPEGs: rows a second, first batch, memory, held-out loss by order",
    "guard": "latency of the control plane for others during an attack",
    "join": "pause of training when a worker joins, and Ray Train's resize",
    "network": "gradient sums between hosts over 1 Gbit/s links: ours and gloo",
    "optim": "a step with LARS, LAMB, an average of the weights, two optimizers by turns: a session and plain torch",
    "overhead": "cost of a session, of reproducible sums and of comparing members",
    "page": "the page in a browser: 100 runs, a million steps, a live step; what system metrics cost",
    "ps": "a step through a parameter server and through a ring",
    "recovery": "time from a kill to the next step: ours, torchft and Ray Train",
    "scheduler": "a scheduling pass over a long queue and a large, full cluster",
    "soak": "seeded random faults; every job must end with the same weights",
    "step": "a training step: ours and DistributedDataParallel",
    "submit": "time from submit to the first step: ours and Ray Train",
    "sweep": "a sweep of 27 trials with rungs, without, and with Ray Tune's ASHA",
    "sync": "all sync modes on CIFAR-10 and two nodes",
    "token_ring": "the token ring over slow and fast links",
}
"""Name → what it measures, for `ringleader bench --help`."""


def load(name: str) -> Benchmark:
    """The module of a benchmark. Raises KeyError for a name that is not in BENCHMARKS."""
    return cast(Benchmark, import_module(BENCHMARKS[name]))
