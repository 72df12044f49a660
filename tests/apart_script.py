"""An actor without Ray: one member of one job under another account, and what its supervisor hears, a line each.

`python apart_script.py FOLDER PROGRAM`: FOLDER is root's and every account may pass through it; PROGRAM is the body of
a module with a function `train`.
"""

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from ringleader.accounts import Account, RunAs
from ringleader.elastic import Meeting, Plan
from ringleader.runtime.messages import (
    AttemptLaunch,
    Heartbeat,
    IndexAnswer,
    MemberTask,
    ParkMessage,
    ProcessIdentity,
    SecretsAnswer,
)
from ringleader.runtime.worker.account_actor import AccountMember
from ringleader.spec import JobSpec
from ringleader.wire.package import pack

NOBODY = Account("nobody", 65534, 65534)
SPEC = JobSpec.parse(
    {
        "name": "apart",
        "entrypoint": "program:train",
        "workers": {"max": 1},
        "batch": {"global_size": 4},
        "secrets": {"HF_TOKEN": "hub"},
    }
)

SAYING = threading.Lock()


class Hears:
    """The supervisor; it is away when it is asked for the secrets a second time."""

    asked = 0

    def __init__(self) -> None:
        self.indexes: dict[str, bytes] = {}

    def parked(self, park_message: ParkMessage) -> None:
        say(
            "parked",
            worker=park_message.worker,
            pid=park_message.identity.pid,
            life=park_message.identity.life,
        )

    def seated(self, worker: str, generation: int) -> None:
        say("seated", worker=worker, generation=generation)

    def in_sync(self, worker: str, pair: int) -> None:
        say("in_sync", worker=worker, pair=pair)

    def beat(self, beat: Heartbeat) -> int | None:
        for line in beat.lines:
            say("line", worker=beat.worker, pid=beat.identity.pid, text=line.text)
        return 10**9

    def secrets(self) -> SecretsAnswer | None:
        self.asked += 1
        if self.asked > 1:
            threading.Event().wait(60)
        return SecretsAnswer({"HF_TOKEN": "hf_value"})

    def index(self, worker: str, name: str) -> IndexAnswer:
        return IndexAnswer("made", self.indexes[name]) if name in self.indexes else IndexAnswer("make")

    def index_made(self, worker: str, name: str, index: bytes | None) -> None:
        say("index_made", worker=worker, size=len(index or b""))
        self.indexes[name] = index or b""


def say(kind: str, **values: Any) -> None:
    with SAYING:  # `print` writes a line and its end one after the other, and several threads say something
        print(json.dumps({"kind": kind, **values}), flush=True)


def main(folder: Path, program: str) -> None:
    run_as = RunAs(NOBODY, folder)
    launch = AttemptLaunch("job_1", 1, SPEC, None, "", "", Path("/nowhere"), run_as=run_as)
    task = MemberTask(
        "job_1", 1, "w0", "worker", SPEC, launch.left, launch.scratch, launch.checkpoints, run_as
    )
    apart = AccountMember(task, ProcessIdentity(os.getpid(), "node", "127.0.0.1", 9), Hears())
    plan = Plan(1, 1, ("w0",), 0, SPEC.shards, 0, (), 0, Meeting(), "start")
    threading.Thread(target=apart.take, args=(plan,), daemon=True).start()
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "program.py").write_text(program)
        package = pack(Path(work))
    say("attendance", busy=apart.attendance().busy)
    ended = apart.run(package)
    said = apart.attendance() if ended.kind != "failed" else None
    say("ended", end=ended.kind, message=ended.message, generation=said and said.generation)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
