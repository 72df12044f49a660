"""The program that a job file names: its entrypoint, its framework, and how it can be run."""
