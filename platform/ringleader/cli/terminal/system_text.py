"""What workers use, in words: the cells of `ringleader workers` and a part of `ringleader describe`."""

from collections.abc import Sequence

from ringleader.cli.output import table
from ringleader.cli.terminal.exchange_text import size_text
from ringleader.client import Worker

USES = ("CPU", "MEMORY", "GPU MEMORY")
"""The columns of what a worker uses; a cell is empty where it was not measured."""


def use_cells(worker: Worker) -> tuple[str, str, str]:
    """`98%` of one core, resident bytes, bytes on GPUs."""
    cpu = "" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f}%"
    return cpu, _size(worker.memory_bytes), _size(worker.gpu_memory_bytes)


def uses_text(workers: Sequence[Worker]) -> str:
    """The part of `describe` about what workers use; empty where nothing was measured yet."""
    cells = [(worker.id, worker.address or worker.node, *use_cells(worker)) for worker in workers]
    cells = [row for row in cells if any(row[2:])]
    if not cells:
        return ""
    header = ("WORKER", "NODE", *USES)
    # A column that nobody has a value in is left out: most machines have no GPU.
    met = [at for at in range(len(header)) if any(row[at] for row in cells)]
    lines = table([header[at] for at in met], ([row[at] for at in met] for row in cells), "").splitlines()
    return "\n".join(
        ["\nusing (CPU of one core, memory with all that a worker has started)", *_indented(lines)]
    )


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else size_text(size_bytes)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
