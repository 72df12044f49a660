"""One attempt started in a test on a real cluster, and the tiny training functions it runs."""

import os
import shutil
from pathlib import Path
from typing import Any

import pace
from integration.ray_home import IngestServer
from waiting import wait_for

from ringleader.runtime.nodes.cluster import AttemptLaunch, RayCluster
from ringleader.runtime.nodes.node_scratch import copies_of
from ringleader.runtime.records.spool import unposted
from ringleader.spec import JobSpec

TRAIN = """
import os, tempfile, time
from pathlib import Path
import torch
from pace import keep_pace
from torch.utils.data import Dataset

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        x = torch.zeros(8)
        x[i % 8] = 1.0
        return {"x": x, "y": torch.tensor(float(i % 8))}

def train(session):
    print("hello from the training function")
    net = session.model(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
    optimizer = session.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    rows = Rows()
    if "rows" in session.params:
        from ringleader.data import ParquetDataset
        rows = ParquetDataset(session.params["rows"])
    for epoch in range(session.params["epochs"]):
        for batch in session.batches(rows):
            time.sleep(session.params.get("pause", 0.0))
            keep_pace(session)
            while "hang" in session.params and os.path.exists(f"{session.params['hang']}/{os.getpid()}"):
                time.sleep(0.01)
            loss = ((net(batch["x"]).squeeze(-1) - batch["y"]) ** 2).mean()
            session.step(loss)
        print("epoch", epoch)
    print("goodbye")

class Likes(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        items = torch.tensor([7 * i, 11 * i + 1, 13 * i]) % 5000
        return {"user": torch.tensor(i % 40), "items": items, "liked": torch.tensor(float(i % 3 == 0))}

class Recommender(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users = torch.nn.Embedding(40, 8, sparse=True)
        self.items = torch.nn.EmbeddingBag(5000, 8, mode="mean", sparse=True)
        self.head = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def forward(self, user, items):
        return self.head(torch.cat([self.users(user), self.items(items)], dim=1)).squeeze(1)

def recommend(session):
    net = session.model(Recommender())
    session.optimizer(torch.optim.SparseAdam([net.users.weight, net.items.weight], lr=0.02), clip_norm=1.0)
    session.optimizer(torch.optim.Adam(net.head.parameters(), lr=0.005))
    for epoch in range(session.params["epochs"]):
        for batch in session.batches(Likes()):
            time.sleep(session.params.get("pause", 0.0))
            keep_pace(session)
            score = net(batch["user"], batch["items"])
            session.step(torch.nn.functional.binary_cross_entropy_with_logits(score, batch["liked"]))

def trusted(session):
    with open(f"{session.params['told']}/{os.getpid()}", "w") as told:
        told.write(os.environ["HF_TOKEN"][::-1])
    train(session)

class Beside(Dataset):
    def __init__(self, folder, scratch):
        self.folder, self.scratch, self.read = folder, scratch, {}
    def __len__(self):
        return 64
    def __getitem__(self, i):
        if i not in self.read:
            assert os.path.isdir(self.scratch)
            self.read[i] = torch.full((8,), float((self.folder / "tiny_training.py").read_bytes()[i] % 8))
        return {"x": self.read[i], "y": torch.tensor(float(i % 8))}

def beside_its_files(session):
    started = time.time()
    net = session.model(torch.nn.Linear(8, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.001))
    rows = Beside(Path(__file__).parent, tempfile.mkdtemp())
    device = session.device
    for epoch in range(session.params["epochs"]):
        for batch in session.batches(rows):
            session.step(((net(batch["x"].to(device)).squeeze(-1) - batch["y"]) ** 2).mean())
        print(epoch, time.time() - started)
    os.rmdir(rows.scratch)

def burn(session):
    net = session.model(torch.nn.Linear(8, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.001))
    for batch in session.batches(Rows()):
        while not os.path.exists(session.params["burnt"]):
            pass
        session.step(((net(batch["x"]).squeeze(-1) - batch["y"]) ** 2).mean())

def broken(session):
    net = session.model(torch.nn.Linear(8, 1))
    raise ZeroDivisionError("on purpose")
"""


def write_training(folder: Path, source: str = TRAIN) -> None:
    """The working folder of the jobs that train with `source`."""
    folder.mkdir()
    (folder / "tiny_training.py").write_text(source)
    shutil.copy(pace.__file__, folder)


class Run:
    """One attempt started in a test."""

    def __init__(self, cluster: RayCluster, launch: AttemptLaunch, ingest: IngestServer) -> None:
        self.cluster, self.launch, self.ingest = cluster, launch, ingest
        cluster.start(launch)

    def pids(self) -> dict[str, int]:
        members = [w for w in self.ingest.status.get("workers", []) if w["rank"] is not None]
        return {w["id"]: w["pid"] for w in members}

    def step(self) -> int:
        return int(self.ingest.status.get("progress", {}).get("step", 0))

    def world(self) -> int:
        return int(self.ingest.status.get("world_size", 0))

    def until_step(self, step: int) -> None:
        try:
            wait_for(f"step {step}", lambda: self.step() >= step or self.ingest.outcome(), 120)
        except AssertionError:
            print(self.ingest.status, self.ingest.records)
            raise
        assert self.ingest.outcome() is None, self.ingest.outcome()

    def until_world(self, size: int) -> None:
        try:
            wait_for(f"world of {size}", lambda: self.world() == size or self.ingest.outcome(), 120)
        except AssertionError:
            print(self.ingest.status, self.ingest.records)
            raise
        assert self.world() == size, self.ingest.outcome()

    def open_gate(self, step: int) -> None:
        pace.open_gate(self.launch.spec.params, step)

    def outcome(self, deadline_s: float = 180) -> dict[str, Any]:
        try:
            found = wait_for("outcome", lambda: self.ingest.outcome(self.launch.attempt), deadline_s)
        except AssertionError:
            print(self.ingest.status, self.ingest.records)
            raise
        assert found is not None
        return found

    def leave_nothing(self, *, orderly: bool = True) -> None:
        """`orderly`: the supervisor was there to the end."""
        for _ in range(2):  # twice is as good as once
            self.cluster.release(self.launch.job_id, self.launch.attempt)
        name = (self.launch.job_id, self.launch.attempt)
        assert name not in self.cluster.supervisors()
        total = self.cluster.capacity().cpus
        wait_for("free CPUs", lambda: self.cluster.capacity().available.get("CPU", 0) == total)
        wait_for("ended workers", lambda: not [p for p in self.pids().values() if alive(p)])
        assert not self.launch.scratch.exists()
        assert not copies_of(self.launch.scratch.name).exists()
        if orderly and self.ingest.outcome(self.launch.attempt):
            # A heartbeat may come after the outcome is stored: the control plane reads what it left, as here.
            late = [record for batch in unposted(self.launch.spool) for record in batch]
            assert not [record for record in late if record["stream"] == "outcome"]
            assert not self.launch.spool.exists()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def start(
    cluster: RayCluster,
    home: Path,
    ingest: IngestServer,
    package: bytes,
    job: str,
    *,
    function: str = "train",
    attempt: int = 1,
    **spec: Any,
) -> Run:
    checked = JobSpec.parse(
        {
            "name": job,
            "entrypoint": f"tiny_training:{function}",
            "batch": {"global_size": 16, "logical_shards": 4},
            "working_dir": "sha256:" + "0" * 64,
            **spec,
            "debug": {"check": False, **spec.get("debug", {})},  # its lines come when the machine has time
        }
    )
    launch = AttemptLaunch(
        job_id=job,
        attempt=attempt,
        spec=checked,
        package=package,
        ingest_url=ingest.url,
        ingest_token="secret",
        home=home,
    )
    return Run(cluster, launch, ingest)
