"""The registry of codecs: ways of sending a gradient in fewer bytes. To add one, write its file and name it here and
in the job file's model."""

from ringleader.comm.codecs.codec import Codec
from ringleader.comm.codecs.int8 import INT8
from ringleader.comm.codecs.narrow import BF16, FP16
from ringleader.comm.codecs.onebit import ONEBIT
from ringleader.comm.codecs.powersgd import POWERSGD
from ringleader.comm.codecs.topk import TOPK

CODECS: dict[str, Codec] = {codec.name: codec for codec in (BF16, FP16, INT8, ONEBIT, TOPK)}

NAMES: tuple[str, ...] = (*CODECS, POWERSGD)
"""The names that a job file may use. PowerSGD does not code single messages, see `powersgd`."""
