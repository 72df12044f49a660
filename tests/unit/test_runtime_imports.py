"""Processes that wait for work have imported what a worker and a supervisor import: recoveries do not pay for it."""

import json
import subprocess
import sys

PROGRAM = """
import json, sys
from ringleader.runtime.nodes.imports import import_all_but_ray, import_engine
import_all_but_ray()
before_ray = "ray" in sys.modules
import_engine()
there = set(sys.modules)
import ringleader.train.local
from ringleader.runtime.worker import member, requirements
from ringleader.runtime.supervisor import actor, attempt
from ringleader.runtime.supervisor.workers import worker_group
print(json.dumps({"ray": before_ray, "late": sorted(m for m in set(sys.modules) - there if "ringleader" in m)}))
"""


def test_the_engine_is_imported_beforehand_and_ray_only_in_time() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    told = json.loads(ran.stdout)
    assert told["ray"] is False
    assert told["late"] in ([], ["ringleader.train.local"])
