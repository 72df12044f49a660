"""The state that a step commits: weights, buffers, optimisers, schedules and kept objects."""
