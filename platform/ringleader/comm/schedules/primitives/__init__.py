"""The building blocks of schedules."""
