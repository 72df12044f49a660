"""What a warm process has behind it when a job takes it."""

import json
import subprocess
import sys

FIRST_STEP = """
import json, sys
from ringleader.runtime.nodes.imports import import_engine

import_engine()
warm = set(sys.modules)

import ringleader.runtime.supervisor.actor  # comes with the handle that the work brings
import torch
from ringleader.spec import JobSpec
from ringleader.train.local import local_session

rows = [{"x": torch.zeros(4), "y": torch.zeros(1)} for _ in range(8)]
spec = {"name": "a", "entrypoint": "a:b", "workers": {"min": 1, "max": 1}, "batch": {"global_size": 8}}
steps = 0
with local_session(JobSpec.parse(spec)) as session:
    net = session.model(torch.nn.Linear(4, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for batch in session.batches(rows):
        session.step((net(batch["x"]) - batch["y"]).pow(2).mean())
        steps += 1
print(json.dumps({"steps": steps, "imported": sorted(set(sys.modules) - warm)}))
"""


def test_a_warm_process_imports_nothing_of_ours_and_no_compiler_up_to_its_first_step() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP], capture_output=True, text=True, timeout=120, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["steps"] > 0
    late = {name for name in said["imported"] if name.split(".")[0] != "torch" or "dynamo" in name}
    assert late <= {"ringleader.train.local"}, "only what stands in for the group may come late"
