"""Rows of a step: which they are, and how they are loaded."""
