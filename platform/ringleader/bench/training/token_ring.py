"""The token ring over late links, beside itself over prompt ones: no worker should wait for a token."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child
from ringleader.bench.processes.gate import LOOPBACK
from ringleader.bench.registry import Wish
from ringleader.bench.training.token_member import PASS_BATCHES
from ringleader.bench.training.workloads import REAL_IMAGES

WORLD = 2
DELAY_S = 0.010
WORKLOAD = "cifar"
MEMBER = "ringleader.bench.training.token_member"
RUN_DEADLINE_S = 180.0
DELAY = "delay-10ms"
CASES = (DELAY, f"{DELAY}-rounds", f"{DELAY}-loss")
LEAST_ROUNDS = 0.5 / (WORLD * DELAY_S)


def run(wish: Wish) -> Iterator[Figure]:
    """Measure late and prompt runs by turns, each over the same rows."""
    if not any(wish.wants(case) for case in CASES):
        return
    runs, passes = (7, 4) if wish.full else (4, 1)
    said: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number in range(runs):
        # The order alternates, so that neither always follows the other.
        for delayed in (True, False) if number % 2 else (False, True):
            said[delayed].append(_run(f"{number}-{delayed}", DELAY_S if delayed else 0.0, passes))
    late, prompt = (
        {key: [one[key] for one in said[side]] for key in said[side][0]} for side in (True, False)
    )
    yield from (figure for figure in _figures(late, prompt, passes) if wish.wants(figure.case))


def _figures(late: dict[str, list[float]], prompt: dict[str, list[float]], passes: int) -> tuple[Figure, ...]:
    """The figures of the late runs beside the prompt ones."""
    return (
        Figure(
            case=DELAY,
            unit="rows/s",
            better="higher",
            ours=late["rows_per_s"],
            peers=prompt["rows_per_s"],
            peer_name="without delay",
            target=Target("ratio", ">=", 0.9),
            settings=_settings(passes),
        ),
        Figure(
            case=CASES[1],
            unit="1/s",
            better="higher",
            ours=late["rounds_per_s"],
            target=Target("ringleader", ">=", LEAST_ROUNDS),
            settings=f"rounds a second; the bar is 0.5/(P x delay) with P = {WORLD}",
        ),
        Figure(
            case=CASES[2],
            unit="1",
            better="lower",
            ours=late["loss"],
            peers=prompt["loss"],
            peer_name="without delay",
            settings="mean training loss of the last 20 steps, after equal samples",
        ),
    )


def _run(side: str, delay_s: float, passes: int) -> dict[str, float]:
    """Rank 0's answer from one run."""
    store = TCPStore(
        LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=RUN_DEADLINE_S)
    )
    words = [f"--side={side}", f"--port={store.port}", f"--world={WORLD}", f"--passes={passes}"]
    words += [f"--workload={WORKLOAD}", f"--delay-ms={delay_s * 1000:g}"]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(MEMBER, [*words, f"--rank={rank}"], threads)) for rank in range(WORLD)
        ]
        ended = [child.answers(RUN_DEADLINE_S) for child in children]
    return ended[0][0]


def _settings(passes: int) -> str:
    rows = "CIFAR-10" if REAL_IMAGES.exists() else "synthetic"
    return (
        f"{DELAY}: the image recipe's network, SGD with momentum, global batch 256, {passes} passes of {PASS_BATCHES} "
        f"batches of {rows} rows, each to its end; {WORLD} workers of 1 thread, L = K = {WORLD}, shared memory; each "
        f"message is sent {DELAY_S * 1000:g} ms late; peer: the same without the delay"
    )
