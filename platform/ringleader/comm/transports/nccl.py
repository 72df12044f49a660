"""The transport for members with a CUDA device each: gradients stay on the devices and go over NCCL, all else over
gloo.

A process group of its own for every generation, and no torch.distributed world around it. NCCL's kernels wait on the
device without a deadline, and its own watchdog would end the process: so the waits here ask the host whether the device
is done, until a deadline or the end of the generation, and `abort` ends the kernels. Destroying a communicator is a
collective call, which a lost member cannot join; aborting it is not.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.comm.transports.gloo import GlooTransport, first_line
from ringleader.comm.transports.staged import StagedTransport
from ringleader.comm.transports.transport import Messages, Work
from ringleader.errors import ExchangeBroken

NAP_S = 20e-6
OURS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "15",
}
"""Deadlines are ours: the library's watchdog would take the whole process down with a lost peer. The last one, in
seconds, is for connections."""


def own_device() -> str:
    """The identifier of this process's device among all others; empty where it has none, or no NCCL."""
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return ""
    # Not its number: each process counts the devices that it sees from 0.
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def this_device() -> int | None:
    """The calling thread's device, which other threads do not inherit; None where there is none."""
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def stay_on(device: int | None) -> None:
    """Make `device` the calling thread's device."""
    if device is not None:
        torch.cuda.set_device(device)


def apart(devices: Sequence[str]) -> bool:
    """Whether every member has a device of its own, as NCCL requires."""
    return all(devices) and len(set(devices)) == len(devices)


@dataclass(slots=True)
class _NcclWork:
    """An operation in progress on the device."""

    owner: "NcclTransport"
    work: Any

    def wait(self) -> None:
        """Block the calling thread, not only its stream."""
        until = time.monotonic() + self.owner.deadline_s
        try:
            while not self.work.is_completed():
                if self.owner.over or time.monotonic() > until:
                    raise self.owner.broken(f"no answer within {self.owner.deadline_s} s")
                time.sleep(NAP_S)
            # Cannot block any more: the device is done.
            self.work.wait()
            why = ""
        except RuntimeError as error:
            why = first_line(error)
        # Kernels that `abort` has ended look completed.
        if why or self.owner.over:
            raise self.owner.broken(why)


class NcclTransport:
    """One member's end of one generation. Implements Transport, and GroupedMessages.

    Args:
        far: connected to all members; it carries what lies in host memory. A schedule named in the job file goes
            through it too, by way of the host: NCCL matches messages by their order alone, which schedules do not keep.
    """

    shared = False
    groups: tuple[tuple[int, ...], ...] = ()

    def __init__(self, far: GlooTransport, group: Any, deadline_s: float) -> None:
        self.rank = far.rank
        self.size = far.size
        self.seal = far.seal
        self.deadline_s = deadline_s
        self._ended = ""
        self._far = far
        self._staged = StagedTransport(far)
        self._group = group
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._closing = threading.Lock()

    @staticmethod
    def join(store: Any, far: GlooTransport, deadline_s: float) -> "NcclTransport":
        """Connect the devices of all members; all of them call this.

        Args:
            store: the generation's part of the store.

        Raises:
            RuntimeError: a member did not come.
        """
        for name, value in OURS.items():
            # NCCL's process group reads them when it is made.
            os.environ.setdefault(name, value)
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=deadline_s)
        options.config.blocking = 0  # else nobody could end a connection that a lost member never makes
        backend = nccl(store, far.rank, far.size, options)
        backend._set_sequence_number_for_group()
        kind: Any = dist.ProcessGroup.BackendType.NCCL
        group: Any = dist.ProcessGroup(store, far.rank, far.size)
        group._set_default_backend(kind)
        group._register_backend(torch.device("cuda"), kind, backend)
        transport = NcclTransport(far, group, deadline_s)
        transport._connect()
        return transport

    @property
    def over(self) -> str:
        return self._ended or self._far.over

    @property
    def together(self) -> "NcclTransport":
        return self

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Transfer all messages of a round in one call; returns when they are done on the device."""
        if not sends and not receives:
            return
        with torch.cuda.device(self._device):
            # A lane is a thread of its own, and CUDA's current device is not inherited by threads.
            self._begin(lambda group: self._in_one(group, sends, receives)).wait()

    def native_all_reduce(self, tensor: Tensor) -> Work:
        if not tensor.is_cuda:
            return self._far.native_all_reduce(tensor)
        with torch.cuda.device(self._device):
            return self._begin(lambda group: group.allreduce([tensor]))

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._staged.isend(tensor, peer, tag)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        return self._staged.irecv(tensor, peer, tag)

    def board(self, slots: int, rows: int) -> None:
        return None

    def broken(self, why: str) -> ExchangeBroken:
        return ExchangeBroken(rank=-1, phase="transfer", bucket=None, why=self.over or why)

    def abort(self) -> None:
        self._end("the generation was given up")
        self._far.abort()

    def close(self) -> None:
        self._end("the transport is closed")
        self._far.close()

    def _connect(self) -> None:
        """Connect all devices, and wait for it.

        Raises:
            RuntimeError: a member did not come.
        """
        try:
            # By a collective: an eager connection that does not block cannot be waited for, and messages between some
            # of the members would connect no more than these.
            self.native_all_reduce(torch.zeros(1, dtype=torch.float32, device=self._device)).wait()
            return
        except ExchangeBroken as error:
            why = error.why
        self.close()
        raise RuntimeError(why)

    def _in_one(self, group: Any, sends: Messages, receives: Messages) -> Any:
        group._start_coalescing(self._device)
        for values, peer in sends:
            group.send([values], peer, 0)
        for values, peer in receives:
            group.recv([values], peer, 0)
        return group._end_coalescing(self._device)

    def _begin(self, start: Callable[[Any], Any]) -> _NcclWork:
        group = self._group
        if group is None:
            raise self.broken(self.over)
        try:
            return _NcclWork(self, start(group))
        except RuntimeError as error:
            why = first_line(error)
        raise self.broken(why)

    def _end(self, why: str) -> None:
        with self._closing:
            self._ended = self._ended or why
            group, self._group = self._group, None
        if group is not None:
            group.abort()
