"""Transports: the movement of bytes between two members."""

from ringleader.comm.transports.transport import SharedSums, Transport, Work

__all__ = ["SharedSums", "Transport", "Work"]
