"""The command line: no torch, no ray."""
