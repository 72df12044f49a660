"""The worker processes of an attempt: found, told what to do, looked at, ended."""
