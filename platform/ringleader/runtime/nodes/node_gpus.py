"""The GPUs of this node as NVML has them: how busy they are, and how much of their memory is in use by whom."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs of a node: the mean of their utilisation in percent, their bytes in use, and all their bytes."""

    percent: float | None
    memory_bytes: int
    memory_total_bytes: int


def read_gpus() -> tuple[GpuReading | None, Mapping[int, int]]:
    """The GPUs now, None without any, and the bytes on them by process id."""
    nvml = _nvml()
    return read_by(nvml) if nvml is not None else (None, {})


def read_by(nvml: Any) -> tuple[GpuReading | None, Mapping[int, int]]:
    """The same, by a module with NVML's functions."""
    try:
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        memory = [nvml.nvmlDeviceGetMemoryInfo(gpu) for gpu in gpus]
    except nvml.NVMLError:
        return None, {}
    if not gpus:
        return None, {}
    busy = [percent for gpu in gpus if (percent := _percent(nvml, gpu)) is not None]
    by_process: dict[int, int] = defaultdict(int)
    for gpu in gpus:
        for process in _processes(nvml, gpu):
            if process.usedGpuMemory is not None:
                by_process[process.pid] += process.usedGpuMemory
    mean = sum(busy) / len(busy) if busy else None
    return GpuReading(mean, sum(m.used for m in memory), sum(m.total for m in memory)), by_process


@cache
def _nvml() -> Any:
    """Ray's own copy of NVML's bindings, ready for use; None where there is no driver."""
    from ray._private.thirdparty import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _percent(nvml: Any, gpu: Any) -> float | None:
    # A slice of a GPU that is shared out has no figure of its own.
    try:
        return float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
    except nvml.NVMLError:
        return None


def _processes(nvml: Any, gpu: Any) -> list[Any]:
    try:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
    except nvml.NVMLError:
        return []
