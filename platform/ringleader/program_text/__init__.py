"""The source text of programs: which of their variables affect training, and which are carried from turn to turn.

Reads texts and frames; imports nothing of the engine, but knows the names of the session's methods.
"""
