"""The environment in which tests start Ray."""

import os

FAIR = {"RAY_worker_niceness": "0"}
"""Ray's workers run at nice 15 otherwise: what other tests compute at the same time would starve them for minutes."""


def ray_environ() -> dict[str, str]:
    """This process's environment without what it knows of its own cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | FAIR
