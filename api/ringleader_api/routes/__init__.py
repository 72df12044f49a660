"""The HTTP routes: parse, permit, one service call, return."""
