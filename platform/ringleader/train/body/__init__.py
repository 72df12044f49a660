"""The body of a loop over batches: its turns, and the state that it may change."""
