"""Sums among processes and hosts: schedules, transports and codecs."""
