"""Loops written for Accelerate on a session."""

from ringleader.adapters.accelerate.accelerator import ElasticAccelerator

__all__ = ["ElasticAccelerator"]
