"""The source text of programs: which of their variables affect training, and which are carried from turn to turn.

Reads texts and frames; knows nothing of sessions, steps or workers.
"""
