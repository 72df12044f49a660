"""A function of Ray Train from its job file on a real Ray cluster: killed, resized, and the same bits."""

import os
import signal
from pathlib import Path

import torch
from integration.runtime_job import start
from waiting import wait_for

from ringleader.train.local import run_local
from ringleader.train.run import function_of
from ringleader.wire.package import pack

PACED = """
import time
from pathlib import Path

from ray.train.examples.pytorch import torch_linear_example as example

GATE = Path({gate!r})


class Paced(example.LinearDataset):
    def __getitem__(self, index):
        if not GATE.exists():
            time.sleep(0.15)
        return super().__getitem__(index)


example.LinearDataset = Paced
train_func = example.train_func
"""


def test_rays_own_example_keeps_its_bits_through_a_kill_and_a_resize(
    cluster, home, ingest, tmp_path, monkeypatch
):
    gate, folder = tmp_path / "gate", tmp_path / "paced"
    folder.mkdir()
    (folder / "paced_linear.py").write_text(PACED.format(gate=str(gate)))
    run = start(
        cluster,
        home,
        ingest,
        pack(folder),
        "ray-train",
        framework="ray_train",
        entrypoint="paced_linear:train_func",
        params={"lr": 0.01, "batch_size": 16, "epochs": 3, "data_size": 320, "val_size": 4},
        workers={"min": 1, "max": 3},
    )
    run.until_world(3)
    run.until_step(3)
    before = run.pids()
    os.kill(before["w1"], signal.SIGKILL)
    wait_for("replacement", lambda: [e for e in ingest.events("worker.joined") if e["worker"] == "w3"], 120)
    cluster.resize("ray-train", 1, 2, 2)
    run.until_world(2)
    gate.touch()
    outcome = run.outcome()
    assert outcome["outcome"] == "succeeded", outcome
    result = outcome["result"]
    assert (result["steps"], result["reproducible"]) == (60, True), result
    assert [e["steps_lost"] for e in ingest.events("recovered")] == [0]
    assert [m["step"] for m in ingest.stream("metrics")] == list(range(1, 61))
    reported = [m["step"] for m in ingest.stream("metrics") if "reported/loss" in m["values"]]
    assert reported == [20, 40, 60]
    artifacts = Path(result["weights_uri"].removeprefix("file://")).parent
    assert (artifacts / f"ray-checkpoint-{60:012d}.tar").is_file()
    monkeypatch.syspath_prepend(str(folder))
    torch.set_num_threads(1)
    spec = run.launch.spec
    assert result["weights_sha256"] == run_local(spec, function_of(spec), tmp_path)[0].digest
    run.leave_nothing()
