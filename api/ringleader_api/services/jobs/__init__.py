"""What becomes of a job: taken, changed, run in attempts, described."""
