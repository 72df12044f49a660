"""The state that a step commits: weights, buffers, optimizers, schedules and kept objects."""
