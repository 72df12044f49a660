"""The machines that had a part in the weights, and their differences, on which bits depend beside the job."""

import hashlib
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from ringleader.elastic import Plan
from ringleader.errors import NoDevice
from ringleader.exchange import Exchange
from ringleader.spec import JobSpec

TEXT_BYTES = 256
"""Bytes of a member's description of its machine; more is cut off."""
_EXACT_BYTES = 6
"""Bytes of a digest that a float64 holds exactly."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One member's machine and software, as text.

    Attributes:
        device: the kind, with the name unless it is a CPU; empty where it has no part in the bits.
        capability: the CPU instructions that torch's kernels are chosen for.
        threads: the number that compute one operation.
    """

    device: str
    capability: str
    torch: str
    numpy: str
    threads: str

    def encode(self) -> bytes:
        return "\n".join(astuple(self)).encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")

    @classmethod
    def decode(cls, text: bytes) -> "Environment":
        values = text.rstrip(b"\0").decode(errors="replace").split("\n")
        # A text that was cut may lack its last fields.
        return cls(*(values + [""] * len(fields(cls)))[: len(fields(cls))])


def device_of(
    spec: JobSpec,
    where: str = "this machine",
    *,
    server: bool = False,
    found: Callable[[], bool] = torch.cuda.is_available,
) -> torch.device:
    """The device of models and batches.

    Args:
        where: this process's node, for the error.
        server: for a server, which has a device of its own only where the job file says so.
        found: whether there is a CUDA device.

    Raises:
        NoDevice: the job asks for one, and there is none.
    """
    gpus = spec.gpus_of("server" if server else "worker")
    whose = "servers.gpus" if server else "workers.gpus"
    if not gpus:
        return torch.device("cpu")
    if found():
        return torch.device("cuda")
    if spec.workers.device == "auto":
        return torch.device("cpu")
    raise NoDevice(
        f"torch {torch.__version__} finds no CUDA device on {where}, but {whose} is {gpus}.",
        hint="Use nodes with a GPU and a CUDA build of torch (torch.cuda.is_available()), or set workers.device: auto, "
        "which falls back to the CPU.",
    )


def this_machine(device: torch.device) -> Environment:
    return Environment(
        device="cpu" if device.type == "cpu" else f"{device.type} {torch.cuda.get_device_name(device)}",
        capability=torch.backends.cpu.get_cpu_capability(),
        torch=torch.__version__,
        numpy=np.__version__,
        threads=str(torch.get_num_threads()),
    )


class EnvironmentCheck:
    """All machines that took part so far, over all attempts; equal on all members, healed and checkpointed."""

    def __init__(self, spec: JobSpec, device: torch.device) -> None:
        self._device = device
        self._servers_differ = bool(spec.workers.gpus) and not spec.servers.gpus
        self._matters = spec.sync.same_bits
        self._seen: list[Environment] = []

    def meet(self, exchange: Exchange, plan: Plan, rank: int) -> None:
        """Exchange the machines of a new generation's members, who call this together."""
        if not self._matters:
            return
        mine, before = this_machine(self._device), self.why_other_bits
        if self._servers_differ and rank >= plan.world:
            mine = replace(
                mine, device=""
            )  # by the job file, and so in every attempt: no reason for other bits
        # One small sum for the common case; the texts follow only where digests differ.
        digests = torch.zeros(len(plan.members), dtype=torch.float64)
        digests[rank] = _digest(mine)
        one = len(set(exchange.all_reduce(digests).tolist())) == 1
        found = [mine] if one else _told(exchange, plan, rank, mine)
        # In the order of ranks: all members have to keep the same list.
        self._seen += [machine for machine in dict.fromkeys(found) if machine not in self._seen]
        if rank == 0 and self.why_other_bits != before:
            print(f"ringleader: the weights will not be reproducible: {self.why_other_bits}")

    @property
    def why_other_bits(self) -> str:
        """The differences between the machines, with the values; empty where there are none."""
        differ = []
        for field in fields(Environment):
            values = sorted({value for machine in self._seen if (value := getattr(machine, field.name))})
            if len(values) > 1:
                differ.append(f"{_WORDS[field.name]} ({', '.join(values)})")
        return f"the machines it was trained on differ in {' and '.join(differ)}" if differ else ""

    def state(self) -> list[tuple[str, ...]]:
        return [astuple(machine) for machine in self._seen]

    def restore(self, state: list[Any]) -> None:
        self._seen = [Environment(*values) for values in state]


def _told(exchange: Exchange, plan: Plan, rank: int, mine: Environment) -> list[Environment]:
    """Every member's machine, by rank."""
    texts = torch.zeros(len(plan.members), TEXT_BYTES, dtype=torch.float64)
    # Each fills a row of its own, so the sum leaves every text as it was.
    texts[rank] = torch.tensor(list(mine.encode()), dtype=torch.float64)
    return [Environment.decode(bytes(text)) for text in exchange.all_reduce(texts).to(torch.uint8).tolist()]


_WORDS = {
    "device": "device",
    "capability": "CPU capability",
    "torch": "torch's version",
    "numpy": "numpy's version",
    "threads": "threads",
}


def _digest(machine: Environment) -> int:
    return int.from_bytes(hashlib.blake2b(machine.encode(), digest_size=_EXACT_BYTES).digest(), "little")
