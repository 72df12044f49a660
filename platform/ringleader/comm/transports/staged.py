"""Transfers of device tensors by way of the host's memory, which is all that gloo moves."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.comm.transports.gloo import GlooTransport
from ringleader.comm.transports.transport import Work


@dataclass(slots=True)
class StagedArrival:
    """A transfer that arrives in host memory and then goes to the device."""

    work: Work
    host: Tensor
    target: Tensor

    def wait(self) -> None:
        self.work.wait()
        self.target.copy_(self.host)


class StagedTransport:
    """One member's end of one generation. Implements Transport.

    Args:
        far: connected to all members.
    """

    shared = False
    together = None

    def __init__(self, far: GlooTransport) -> None:
        self.rank = far.rank
        self.size = far.size
        self.seal = far.seal
        self.groups: tuple[tuple[int, ...], ...] = far.groups
        self._far = far

    @property
    def over(self) -> str:
        return self._far.over

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        # .cpu() waits for the device, so the host's copy is final when it leaves.
        return self._far.isend(tensor.cpu(), peer, tag)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if tensor.device.type == "cpu":
            return self._far.irecv(tensor, peer, tag)
        host = torch.empty_like(tensor, device="cpu")
        return StagedArrival(self._far.irecv(host, peer, tag), host, tensor)

    def native_all_reduce(self, tensor: Tensor) -> Work:
        if tensor.device.type == "cpu":
            return self._far.native_all_reduce(tensor)
        host = tensor.cpu()
        return StagedArrival(self._far.native_all_reduce(host), host, tensor)

    def board(self, slots: int, rows: int) -> None:
        return None

    def abort(self) -> None:
        self._far.abort()

    def close(self) -> None:
        self._far.close()
