"""The body of a loop over batches: its turns, and what it may change."""
