"""How members that should hold the same state are compared, and made alike where they differ."""
