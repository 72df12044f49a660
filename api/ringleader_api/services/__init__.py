"""The services that routes call: each function is one transaction or one read."""
