"""Kills, joins, starts and checkpoints: what they cost a running job."""
