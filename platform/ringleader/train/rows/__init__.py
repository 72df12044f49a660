"""Rows of a step: their choice and their loading."""
