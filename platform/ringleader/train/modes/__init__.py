"""One folder for each way of keeping workers in step."""
