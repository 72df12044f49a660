"""HTTP in and out: parse, permit, one service call, return."""
