"""Optimizers as a step commits them: their states, where servers keep these too, and their learning rates."""
