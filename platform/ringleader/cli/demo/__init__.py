"""The demonstration: digits trained on three workers, one of them killed, and proof that nothing was lost."""
