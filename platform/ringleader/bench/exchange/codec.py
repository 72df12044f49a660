"""Codecs behind links of 1 Gbit/s: seconds of training until the loss is low enough, int8 beside bf16 and none."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ringleader.bench.broken import PeerFailed
from ringleader.bench.exchange import laboratory
from ringleader.bench.exchange.codec_member import REACHED, Asked
from ringleader.bench.exchange.laboratory import Host
from ringleader.bench.line import Figure, Target
from ringleader.bench.processes.children import Child
from ringleader.bench.registry import Wish
from ringleader.bench.training.workloads import REAL_IMAGES

MEMBER = "ringleader.bench.exchange.codec_member"
CASES = ("int8-1gbit",)
WORLD = 2
OURS, PEERS = "int8", ("bf16", "none")
LOSS = 1.85
BLOCK_S = 3.0
MOST_BLOCKS = 40
"""The most blocks that any side trains in a run."""

DEADLINE_S = 120.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class CodecTimes:
    """The course of one side in one run, in its own seconds.

    Attributes:
        seconds: at which a step was committed.
        losses: the mean loss of the last steps by then.
    """

    seconds: Sequence[float]
    losses: Sequence[float]

    def loss_at(self, second: float) -> float:
        known = zip(self.seconds, self.losses, strict=True)
        return next((loss for at, loss in known if at >= second), self.losses[-1])


def run(wish: Wish) -> Iterator[Figure]:
    """Seconds until the loss is reached, one value a run. Raises PeerFailed without namespaces or real images."""
    if why := laboratory.missing():
        raise PeerFailed(f"the benchmark's network namespaces cannot be set up here: {why}.")
    if not REAL_IMAGES.exists():
        raise PeerFailed(f"the images to train on are missing: {REAL_IMAGES}.")
    runs = [_train(wish.seed + number) for number in range(5 if wish.full else 3)]
    took = {side: [run[side].seconds[-1] for run in runs] for side in (OURS, *PEERS)}
    for peer in PEERS:
        yield Figure(
            case=CASES[0],
            unit="s",
            better="lower",
            ours=took[OURS],
            peers=took[peer],
            peer_name=f"our {peer}",
            target=Target("ratio", ">=", 1.0),
            settings=_settings(peer, runs),
        )


def _train(seed: int) -> dict[str, CodecTimes]:
    """One run: every side trains the same model from the same weights, by turns, until it has reached the loss."""
    with ExitStack() as stack:
        here, hosts = stack.enter_context(laboratory.hosts(WORLD))
        store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
        sides = {
            side: [
                stack.enter_context(_member(Asked(side, here, store.port, host.address, rank, seed), host))
                for rank, host in enumerate(hosts)
            ]
            for side in (OURS, *PEERS)
        }
        going = list(sides)
        for block in range(MOST_BLOCKS):
            # A new list, so that a side may leave `going` meanwhile.
            for side in going[block % len(going) :] + going[: block % len(going)]:
                store.set(f"{side}/go/{block}", str(BLOCK_S))
                if _outcome(store, f"{side}/done/{block}", sides[side]) == REACHED:
                    going.remove(side)
            if not going:
                break
        else:
            raise PeerFailed(
                f"{', '.join(going)} did not reach a loss of {LOSS} in {MOST_BLOCKS * BLOCK_S:g} s"
            )
        first = {side: members[0].answers(DEADLINE_S)[0] for side, members in sides.items()}
    return {side: CodecTimes(answer["seconds"], answer["losses"]) for side, answer in first.items()}


def _member(asked: Asked, host: Host) -> Child:
    # Without it gloo takes the address of the machine's name, which no namespace has.
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": laboratory.INTERFACE}
    return Child(MEMBER, [asked.as_json(), str(WORLD), str(LOSS)], threads, host.within)


def _outcome(store: TCPStore, key: str, members: Sequence[Child]) -> str:
    until = time.monotonic() + DEADLINE_S
    # Polled: a blocking `get` would wait out its deadline where a member has died.
    while not store.check([key]):
        for member in members:
            member.check()
        if time.monotonic() > until:
            raise PeerFailed(f"no {key} within {DEADLINE_S:g} s:\n{members[0].tail()}")
        time.sleep(POLL_S)
    return str(store.get(key).decode())


def _settings(peer: str, runs: Sequence[dict[str, CodecTimes]]) -> str:
    steps = {side: median(len(run[side].seconds) for run in runs) for side in (OURS, peer)}
    pace = {side: median(len(run[side].seconds) / run[side].seconds[-1] for run in runs) for side in steps}
    soonest = [min(run[side].seconds[-1] for side in steps) for run in runs]
    then = {
        side: median(run[side].loss_at(s) for run, s in zip(runs, soonest, strict=True)) for side in steps
    }
    told = "; ".join(
        f"{side}: {steps[side]:.0f} steps, {pace[side]:.2f} a second, loss {then[side]:.3f} when the first was there"
        for side in steps
    )
    return (
        f"{CASES[0]}: seconds of training until the mean loss of 20 steps is {LOSS}, one value a run; {told}; "
        f"MLP 3072-1024-1024-1024-10, 5.3M parameters, on CIFAR-10 (10,000 images), SGD 0.02 with momentum 0.9, "
        f"64 rows a worker, {WORLD} hosts of one worker of one thread, 1 Gbit/s; real sessions without the "
        f"supervisor, reproducible false, by turns of {BLOCK_S:g} s"
    )
