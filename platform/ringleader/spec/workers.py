"""The parts of the job file on its workers and servers: their number, and the resources of each."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ringleader.spec.part import MAX_WORKERS, Impossible, SpecPart
from ringleader.spec.sync_keys import MAX_SERVERS

LEAST_CPUS = 0.001
"""The CPUs that a worker reserves that asks for none: there is no empty reservation."""
Device = Literal["auto", "cuda", "cpu"]


class Workers(SpecPart):
    """The number of workers, the resources of each, and the device it computes on.

    `device` is left out where it follows from `gpus`: `cuda` with one, `cpu` with none. `auto` takes the CPU where a
    worker finds no CUDA device on its node, which fails the job otherwise.
    """

    min: Annotated[int, Field(strict=True, ge=1, le=MAX_WORKERS)] = 1
    max: Annotated[int, Field(strict=True, ge=1, le=MAX_WORKERS)] = 1
    cpus: Annotated[float, Field(strict=True, ge=0, le=1024)] = 1
    gpus: Annotated[int, Field(strict=True, ge=0, le=64)] = 0
    memory_gb: Annotated[float, Field(strict=True, ge=0, le=65536)] = 0
    placement: Literal["pack", "spread"] = "pack"
    device: Device | None = None

    @property
    def threads(self) -> int:
        """Threads that compute in a worker."""
        return max(1, int(self.cpus))

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise Impossible(
                "min", self.min, f"min ({self.min}) is above max ({self.max}); allowed: min <= max"
            )
        return self

    @model_validator(mode="after")
    def _one_device(self) -> Self:
        if self.gpus > 1:
            more = f"gpus 1 and more workers, workers: {{min: {self.min * self.gpus}, max: {self.max * self.gpus}, "
            raise Impossible(
                "gpus",
                self.gpus,
                f"a worker uses one GPU: with gpus: {self.gpus} the others would be reserved but idle; "
                f"allowed: {more}gpus: 1}}",
            )
        if self.device is not None and (self.device == "cpu") == bool(self.gpus):
            needs = "has no GPU with gpus: 0" if not self.gpus else f"reserves a GPU with gpus: {self.gpus}"
            raise Impossible(
                "device",
                self.device,
                f"device: {self.device} and gpus: {self.gpus} cannot be combined: a worker {needs}; allowed: device "
                f"cuda or auto with gpus 1, device cpu with gpus 0, or leave it out",
            )
        return self


class Autoscale(SpecPart):
    """Whether nodes are asked for workers above `workers.min`, where the cluster grows."""

    surplus: Annotated[bool, Field(strict=True)] = False

    def told(self, workers: Workers, *, grows: bool = True) -> str:
        """The source of the workers above `workers.min`, in words; empty where there are none.

        Args:
            grows: whether the cluster does, as far as it is known.
        """
        if workers.min == workers.max:
            return ""
        if self.surplus and grows:
            return f"the autoscaler adds nodes for up to max ({workers.max}) workers, within quota and cluster limits"
        why = (
            "autoscale: {surplus: true} would add nodes for them"
            if grows
            else "this cluster does not autoscale"
        )
        return f"workers above min ({workers.min}) use free capacity only: {why}"


class Servers(SpecPart):
    """The number of parameter servers, and the resources of each: CPUs and memory as a worker has where they are left
    out, and no GPU. Threads are those of a worker: the job's sums depend on their number."""

    count: Annotated[int, Field(strict=True, ge=1, le=MAX_SERVERS)] | None = None
    cpus: Annotated[float, Field(strict=True, ge=0, le=1024)] | None = None
    gpus: Annotated[int, Field(strict=True, ge=0, le=1)] = 0
    memory_gb: Annotated[float, Field(strict=True, ge=0, le=65536)] | None = None


def each_server(workers: Mapping[str, Any], servers: Mapping[str, Any] | None) -> dict[str, Any]:
    """`cpus`, `gpus` and `memory_gb` of a server, from these parts of a job file as it is stored."""
    own = {"gpus": 0, **(servers or {})}
    return {key: workers[key] if own.get(key) is None else own[key] for key in ("cpus", "gpus", "memory_gb")}


def with_count(source: Any) -> Any:
    """The job file with `servers.count` where it decides, at `sync.servers`.

    Raises:
        Impossible: both are given, and differ.
    """
    if not counted(source):
        return source
    count = source["servers"]["count"]
    sync = source.get("sync", {})
    if isinstance(sync, str):
        sync = {"intra_node": sync, "inter_node": sync}
    if not isinstance(sync, dict):
        # The model refuses it, and names the key.
        return source
    if sync.get("servers") not in (None, count):
        raise Impossible(
            "servers.count",
            count,
            f"servers.count ({count}) and sync.servers ({sync['servers']}) contradict each other; allowed: one of the "
            f"two, or the same number in both",
        )
    return {**source, "sync": {**sync, "servers": count}}


def counted(source: Any) -> bool:
    """Whether the job file gives a `servers.count`."""
    servers = source.get("servers") if isinstance(source, dict) else None
    return isinstance(servers, dict) and isinstance(servers.get("count"), int)
