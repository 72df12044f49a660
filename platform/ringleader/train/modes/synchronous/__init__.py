"""One global batch, one update: rings and synchronous parameter servers."""
