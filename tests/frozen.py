"""Loaded last by the server that tests' processes are forked from: it has read the text of the table's programs, and
its objects are no garbage. Else each process would read, look through and so copy all of it: most of a short play."""

import gc
from pathlib import Path

import spares

from ringleader.program_text.loop_bodies import text_of

text_of(str(Path(__file__).parent / "conformance" / "programs.py"))
spares.look_through()
gc.collect()
gc.freeze()
