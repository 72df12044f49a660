"""Checkpoints: files of settled steps that a job of any size can start from."""
