"""Injected faults: the request and the answer of `POST /jobs/{id}/faults`."""

from datetime import datetime
from typing import Annotated, Literal, Self, get_args

from pydantic import ConfigDict, Field, model_validator

from ringleader.wire.views import View

Fault = Literal["kill", "freeze", "slow", "drain", "server", "supervisor", "joiner", "donor"]
FAULTS: tuple[Fault, ...] = get_args(Fault)


class FaultOrder(View):
    """One fault. All but `supervisor` name the member that they hit.

    Attributes:
        fault: kill (SIGKILL), freeze (SIGSTOP), slow (stopped three quarters of the time), drain (as if its machine
            went away), server (SIGKILL of a parameter server), supervisor (SIGKILL of the job's supervisor), joiner
            (kill, and the same to its replacement while that joins), donor (kill, and the same to the worker that gives
            its state to the replacement). The last two answer when both are done, or no replacement came.
        for_s: how long a slow worker is slow, or how long a draining machine stays.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fault: Fault
    worker: str | None = None
    for_s: Annotated[float, Field(strict=True, gt=0, le=600)] = 30.0

    @model_validator(mode="after")
    def _has_a_victim(self) -> Self:
        if (self.worker is None) != (self.fault == "supervisor"):
            raise ValueError(
                "every fault except supervisor needs a worker, and supervisor takes none; allowed: the ID of a member"
            )
        return self


class FaultView(View):
    """A fault that was injected: its time, kind and target, and what exactly was done."""

    at: datetime
    fault: Fault
    target: str
    effect: str
