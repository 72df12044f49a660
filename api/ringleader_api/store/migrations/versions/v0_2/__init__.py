"""The migrations that version 0.2 adds."""
