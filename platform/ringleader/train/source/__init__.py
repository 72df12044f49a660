"""The program's source text: which of its variables affect training."""
