"""The ways that Python may go through the statements of a turn, and what is done first on each of them."""
