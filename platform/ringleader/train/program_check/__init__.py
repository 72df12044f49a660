"""Running a program as a joiner would, to name the values that differ before they do harm."""
