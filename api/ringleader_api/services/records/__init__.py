"""What workers and the house report, taken in and read."""
