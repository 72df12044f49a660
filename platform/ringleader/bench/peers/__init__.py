"""The systems a user would pick instead, each a script run as a process of its own, at its best settings."""
