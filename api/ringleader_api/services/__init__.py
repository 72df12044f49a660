"""What routes call: each function is one transaction or one read."""
