"""Benchmarks: one file each, the systems a user would pick instead beside them in `peers/`."""
