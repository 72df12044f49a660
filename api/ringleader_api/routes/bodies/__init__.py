"""Bodies of requests and answers: bounded, checked, streamed."""
