"""Replicas that train for H batches by themselves and are then averaged."""
