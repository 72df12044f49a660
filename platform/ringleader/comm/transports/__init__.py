"""How bytes move between two members."""

from ringleader.comm.transports.transport import Board, Transport, Work

__all__ = ["Board", "Transport", "Work"]
