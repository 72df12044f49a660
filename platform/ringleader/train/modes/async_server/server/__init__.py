"""A server's side: pushes come in, updates are made, weights go out."""
