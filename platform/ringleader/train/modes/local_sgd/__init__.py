"""Replicas that train for H batches by themselves and are averaged then."""
