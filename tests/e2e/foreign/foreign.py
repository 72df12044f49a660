"""A job whose program looks for everything that it should not reach, says what it got, and trains a little."""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def train(session: Any) -> None:
    """Params: what to try, see below."""
    print("found " + json.dumps(found(session.params)))
    net = session.model(torch.nn.Linear(2, 1))
    session.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    rows = [{"x": torch.ones(2), "y": torch.ones(1)} for _ in range(8)]
    for _ in range(2):
        for batch in session.batches(rows, loader_workers=1):
            session.step(((net(batch["x"]) - batch["y"]) ** 2).mean())


def found(params: dict[str, Any]) -> dict[str, Any]:
    """By what was tried the error's name, or `got` and what."""
    actor = os.getppid()
    status = Path("/proc/self/status").read_text()
    tries: dict[str, Callable[[], Any]] = {
        **{f"read {path}": lambda path=path: Path(path).read_bytes() for path in params["files"]},
        **{f"list {path}": lambda path=path: list(Path(path).iterdir()) for path in params["folders"]},
        "connect to MLflow": lambda: socket.socket(socket.AF_UNIX).connect(params["socket"]),
        "environment of the actor": lambda: Path(f"/proc/{actor}/environ").read_bytes(),
        "memory of the actor": lambda: os.open(f"/proc/{actor}/mem", os.O_RDONLY),
        "descriptors of the actor": lambda: list(Path(f"/proc/{actor}/fd").iterdir()),
        "kill the actor": lambda: os.kill(actor, signal.SIGKILL),
        "become root": lambda: os.setuid(0),
        "the memory that Ray shares": lambda: [
            str(path) for path in Path("/dev/shm").iterdir() if os.access(path, os.R_OK | os.W_OK)
        ],
    }
    tried = {name: result(act) for name, act in tries.items()}
    return {
        **tried,
        "user": [os.getuid(), os.getgid(), os.getgroups()],
        "of Ray": sorted(name for name in os.environ if name.startswith("RAY")),
        "capabilities": next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")),
        "no new privileges": next(
            line.split()[1] for line in status.splitlines() if line.startswith("NoNewPrivs")
        ),
        "descriptors": sorted(kinds()),
        "Ray's store": ray_store(params["ray"]),
    }


def result(act: Callable[[], Any]) -> str:
    try:
        return f"got {act()!r}"
    except OSError as error:
        return type(error).__name__


def kinds() -> set[str]:
    """What this process has open, but for its own pipes, sockets and memory."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except OSError:  # the one of this very look
            continue
    return {
        link for link in links if not link.startswith(("pipe:", "socket:", "/memfd:", "anon_inode:", "/proc"))
    }


def ray_store(address: str) -> str:
    """What Ray's control store answers to who has no token."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = "0" * 64
    from ray._raylet import GcsClient

    try:
        return f"got {GcsClient(address=address).internal_kv_keys(b'', None, 10)!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
