"""Values that a device computes, on their way into host memory."""

import torch
from torch import Tensor


class HostCopy:
    """A copy of a tensor in host memory. From a CUDA device it is on its way at once, behind the work that its stream
    was given before; whoever reads it waits for it alone, and not for what the stream is given meanwhile."""

    def __init__(self, values: Tensor) -> None:
        if not values.is_cuda:
            self._host, self._arrival = values.detach().clone(), None
            return
        self._host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        self._host.copy_(values.detach(), non_blocking=True)
        self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrival.record()

    def read(self) -> Tensor:
        """The values, once they are there."""
        if self._arrival is not None:
            self._arrival.synchronize()
            self._arrival = None
        return self._host


def sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device. Without a wait for what the device does meanwhile, as memory that can be paged out would
    need."""
    if device.type != "cuda" or values.device.type != "cpu" or values.layout is not torch.strided:
        return values.to(device, non_blocking=True)
    return (values if values.is_pinned() else values.pin_memory()).to(device, non_blocking=True)
