"""One member on a device of its own: native and canonical sums, then a wait that somebody else's death has to end.

The device is not the first that this process sees: what runs on other threads has to be told which it is.
"""

import json
import os
import sys
import time

import torch
from rooms import SECRET

from ringleader.comm.executor import Scratch
from ringleader.comm.grouped import canonical_sum
from ringleader.comm.schedules import RankPart
from ringleader.comm.transports.meeting import DEVICE_KINDS, MeetingCall, meet
from ringleader.comm.tree import TreeNode, tree_over
from ringleader.errors import ExchangeBroken

LENGTH = 100_003
DEADLINE_S = 5.0


def main(rank: int, size: int, port: int) -> None:
    torch.cuda.set_device(rank)
    transport = meet(
        MeetingCall("127.0.0.1", port, "job/1/1", rank, size, DEADLINE_S, SECRET, kinds=DEVICE_KINDS)
    )
    assert transport.together is not None
    row = torch.full((LENGTH,), float(rank + 1), device="cuda")
    transport.native_all_reduce(row).wait()
    rows = tuple((TreeNode(0, r),) for r in range(size))
    mine = torch.randn(LENGTH, generator=torch.Generator().manual_seed(rank)).cuda()
    part = RankPart(rank, LENGTH, rows, tree_over(size, frozenset(range(size))))
    canonical_sum(part, [mine], Scratch(), transport.together.exchange)
    said = {"native": row.unique().tolist(), "canonical": mine.cpu().view(torch.int32).sum().item()}
    if rank == size - 1:
        print(json.dumps(said), flush=True)
        os._exit(0)  # as if it were killed
    since = time.monotonic()
    try:
        transport.native_all_reduce(row).wait()
    except ExchangeBroken as error:
        said["broken"] = error.why
    transport.abort()
    print(json.dumps({**said, "took_s": time.monotonic() - since}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
