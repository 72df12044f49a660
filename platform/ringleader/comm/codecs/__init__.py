"""Codecs: ways of sending a gradient in fewer bytes."""

from ringleader.comm.codecs.codec import RAW, Codec
from ringleader.comm.codecs.powersgd import POWERSGD
from ringleader.comm.codecs.registry import CODECS, NAMES

__all__ = ["CODECS", "NAMES", "POWERSGD", "RAW", "Codec"]
