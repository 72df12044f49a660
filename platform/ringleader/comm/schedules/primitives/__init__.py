"""What schedules are put together from."""
