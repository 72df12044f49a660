"""The records of workers and supervisors, taken in and read."""
