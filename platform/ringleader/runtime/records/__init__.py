"""Settled records on their way to the control plane."""
