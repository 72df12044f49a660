"""Weights that go round the members as tokens; nobody waits to compute."""
