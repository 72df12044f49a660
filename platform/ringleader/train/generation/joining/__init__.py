"""How a worker comes in: the briefing on calls that are over, the member that it follows, and what it follows."""
