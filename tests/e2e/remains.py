"""What a stack still holds: asked of Ray itself, not of the control plane."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ASK = """
import json, sys
from ringleader.runtime.cluster import Cluster
cluster = Cluster.connect(sys.argv[1])
capacity = cluster.capacity()
free = capacity.available.get("CPU", 0)
print(json.dumps({"supervisors": cluster.supervisors(), "free": free, "all": capacity.cpus}))
cluster.close()
"""
DEADLINE_S = 90


def remains(home: Path) -> dict[str, Any]:
    """{supervisors, free and all CPUs}: a job that left nothing has no supervisor and reserves no CPU."""
    said = [line for line in (home / "log" / "ray.log").read_text().splitlines() if line.startswith("{")]
    environ = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home / "ray_token")}
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.loads(said[-1])["address"]],
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
