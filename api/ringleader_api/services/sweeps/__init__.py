"""Sweeps: made, read, paused and cancelled, and what is known of their trials."""
