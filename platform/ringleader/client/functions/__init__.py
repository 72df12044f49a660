"""Submitting a function of this process: its module, packed as files."""
