"""The migrations that version 0.1 was released with."""
