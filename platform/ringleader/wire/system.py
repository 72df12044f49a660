"""System metrics of a job: what its workers and their nodes use of processors, memory, disks, networks and GPUs."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from ringleader.wire.carried import Moment, Text
from ringleader.wire.views import Real, View

Figure = Literal[
    "cpu_percent",
    "step_s",
    "memory_bytes",
    "memory_total_bytes",
    "disk_read_bytes_per_s",
    "disk_written_bytes_per_s",
    "network_received_bytes_per_s",
    "network_sent_bytes_per_s",
    "gpu_percent",
    "gpu_memory_bytes",
    "gpu_memory_total_bytes",
]
Kind = Literal["worker", "node"]
FIGURES: dict[Kind, tuple[Figure, ...]] = {
    "worker": ("cpu_percent", "step_s", "memory_bytes", "gpu_memory_bytes"),
    "node": tuple(figure for figure in get_args(Figure) if figure != "step_s"),
}
"""What is measured of a worker (its process with all that this has started) and of a node."""
NO_GPU = "no GPU that NVML knows"
NOT_GIVEN = "this platform does not give it"
NO_STEP = "no step was committed"


class SystemUse(View):
    """What one worker or node used.

    Figures that its platform does not give are left out. A worker's `cpu_percent` is of one core, its `memory_bytes`
    are resident, with what its processes share counted in each, its `step_s` the seconds that it loads and computes for
    a step of the job, without what it waits for others. A node's `cpu_percent` is of all its cores, its
    `gpu_percent` the mean over its GPUs, its network without the loopback interface.
    """

    kind: Kind
    id: Annotated[Text, Field(min_length=1, max_length=100)]
    node: Annotated[Text, Field(max_length=100)]
    figures: dict[Figure, Annotated[Real, Field(ge=0, allow_inf_nan=False)]]


class SystemSample(View):
    """What everybody used in the `span_s` seconds that ended at `at`."""

    at: Moment
    span_s: Annotated[Real, Field(gt=0, le=86_400)]
    uses: Annotated[list[SystemUse], Field(max_length=5000)]


class SystemSeries(View):
    """The samples of one worker or node, by columns. Each stands for the `spans_s` seconds that ended at its Unix time
    in `times`; where the next one begins later than that, nothing was measured.

    Attributes:
        figures: null where a sample has no such figure.
        unmet: the figures that no sample has, and why.
    """

    kind: Kind
    id: str
    node: str
    times: list[float]
    spans_s: list[float]
    figures: dict[Figure, list[float | None]]
    unmet: dict[Figure, str]


class SystemHistory(View):
    """What a job's workers and their nodes used: nodes first, each by its name."""

    series: list[SystemSeries]


def why_unmet(figure: Figure) -> str:
    """Why a worker or node has no such figure."""
    if figure == "step_s":
        return NO_STEP
    return NO_GPU if figure.startswith("gpu_") else NOT_GIVEN
