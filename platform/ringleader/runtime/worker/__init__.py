"""A member's process: its plan, its heartbeat, and what it reports."""
