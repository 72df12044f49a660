"""How bytes move between two members."""

from ringleader.comm.transports.transport import Transport, Work

__all__ = ["Transport", "Work"]
