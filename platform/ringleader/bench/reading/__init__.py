"""Benchmarks of reading data."""
