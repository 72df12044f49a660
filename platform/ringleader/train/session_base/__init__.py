"""The parts of a session that no call of it needs: what a program registers, and what it may read."""
