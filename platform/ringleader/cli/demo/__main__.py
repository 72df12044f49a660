"""`python -m ringleader.cli.demo`: start everything, train, kill, count, stop everything.

SEED names the seed of the kill (printed otherwise); KEEP=1 stays up afterwards.
"""

import importlib.util
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from threading import Event

from ringleader.cli.demo.alone import Undisturbed, undisturbed
from ringleader.cli.demo.findings import Findings, broken_promises, describe, gather
from ringleader.cli.demo.kill import kill_one
from ringleader.cli.output import complain
from ringleader.cli.stack.home import Home
from ringleader.cli.stack.stack import Stack, running
from ringleader.cli.up import Stopped, stoppable
from ringleader.client import Client
from ringleader.errors import RingleaderError
from ringleader.spec import JobSpec

END_DEADLINE_S = 300.0
TRACKED_DEADLINE_S = 15.0
EXIT_BROKEN_PROMISE = 1
EXIT_INTERRUPTED = 130


def main() -> int:
    seed = int(os.environ.get("SEED") or secrets.randbelow(1 << 31))
    started = time.monotonic()
    job_file = _job_file()
    # One spare process, for the replacement: more of them would only take the cores from the training.
    os.environ.setdefault("RINGLEADER_WARM_PER_NODE", "1")
    print(
        f"Ringleader demo, seed {seed}: training digits on three workers; one of them will be killed",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="ringleader-demo-", ignore_cleanup_errors=True) as folder:
        try:
            with (
                stoppable() as stopping,
                undisturbed(job_file, Path(folder)) as other,  # the start-up leaves it time enough
                running(Home(Path(folder)), say=_say) as stack,
            ):
                _say(f"{stack.url} is up after {time.monotonic() - started:.1f} s")
                code = _show(_train(stack, job_file, seed, other), time.monotonic() - started)
                if os.environ.get("KEEP") == "1":
                    _stay(stack, stopping)
                return code
        except Stopped:
            print("stopped.", file=sys.stderr)
            return EXIT_INTERRUPTED
        except RingleaderError as error:
            complain(error, as_json=False)
            return EXIT_BROKEN_PROMISE


def _train(stack: Stack, job_file: Path, seed: int, other: Undisturbed) -> Findings:
    """Submit over REST through the SDK, kill, wait, and read what is left."""
    with Client(stack.profile.url, stack.profile.token) as client:
        submitted = time.monotonic()
        job = client.submit(job_file)
        _say(f"{job.id} submitted: {job.url}")
        world = JobSpec.load(job_file).workers.max
        kill = kill_one(job, seed, world)
        _say(f"SIGKILL to {kill.victim.id} (pid {kill.victim.pid}) at step {kill.seen_step}")
        result = job.wait(timeout=END_DEADLINE_S)
        _say(f"{job.state} {time.monotonic() - submitted:.1f} s after it was submitted")
        tracked_until = time.monotonic() + TRACKED_DEADLINE_S
        while not job.refresh().view.tracking.run_id and time.monotonic() < tracked_until:
            time.sleep(0.1)
        return gather(job, result, kill, stack.home.root, other.sha256())


def _show(found: Findings, elapsed_s: float) -> int:
    print(f"\n{describe(found)}\n", flush=True)
    broken = broken_promises(found)
    for promise in broken:
        print(f"BROKEN PROMISE: {promise}", file=sys.stderr)
    print(f"{'FAILED' if broken else 'all promises kept'} in {elapsed_s:.1f} s", flush=True)
    return EXIT_BROKEN_PROMISE if broken else 0


def _stay(stack: Stack, stopping: Event) -> None:
    print(
        f"KEEP=1: {stack.url} stays up. Log in with the token in {stack.home.api_token}. Press Ctrl-C to stop it."
    )
    stopping.wait()


def _job_file() -> Path:
    """digits.yaml, beside its module; found without importing torch."""
    found = importlib.util.find_spec("ringleader_jobs")
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "digits.yaml"


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
