"""Streams of events and lines that clients follow."""
