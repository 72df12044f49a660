"""Jobs: taken, changed, run in attempts, described."""
