"""How a request's body is read: bounded, checked, streamed."""
