"""A message that is half sent, over gloo, which tells those who wait for it nothing, however its connection ends."""

import subprocess
import sys
import time

import pytest
import torch
from rooms import SECRET, open_room

from ringleader.comm.communicator import Communicator
from ringleader.comm.transports.meeting import MeetingCall, meet
from ringleader.errors import ExchangeBroken

NUMBERS = 1 << 24
SOON_S = 5.0
PEER = f"""
import os, signal, sys, torch
from ringleader.comm.transports.meeting import MeetingCall, meet
port, secret = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
transport = meet(MeetingCall("127.0.0.1", port, "job/1/1", 1, 2, 60.0, secret, kinds=("gloo",)))
arriving = transport.irecv(torch.empty({NUMBERS}), 0, 0)
os.kill(os.getpid(), signal.SIGSTOP)
"""
"""A member that asks for 64 MiB and then reads none of them."""


@pytest.mark.parametrize("lost", [True, False], ids=["killed", "cut off"])
def test_it_holds_nobody_whose_generation_is_over(lost: bool) -> None:
    store, rows = open_room(), torch.ones(NUMBERS)
    with subprocess.Popen([sys.executable, "-c", PEER, str(store.port), SECRET.hex()]) as peer:
        try:
            transport = meet(
                MeetingCall("127.0.0.1", store.port, "job/1/1", 0, 2, 60.0, SECRET, kinds=("gloo",))
            )
            communicator = Communicator(transport)
            ticket = communicator.submit_call(
                lambda _, to: to.isend(rows, 1, 0).wait(), [rows], phase="reduce", bucket=0
            )
            assert not communicator.done(ticket, 0.5)
            if lost:
                peer.kill()
                peer.wait()
                assert not communicator.done(ticket, 0.5)  # if gloo mends this, the transport may be simpler
            transport.abort()
            since = time.monotonic()
            with pytest.raises(ExchangeBroken, match="given up"):
                communicator.wait([ticket])
            assert time.monotonic() - since < SOON_S
            assert communicator.close() is False  # the lane is left behind, with its memory
        finally:
            peer.kill()
