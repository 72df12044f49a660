"""Steps and whole runs in each way of keeping workers in step."""
